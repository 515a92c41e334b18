"""doctor: what is wrong on this machine, and the command that mends it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from pgcli import doctor
from pgcli.cli import config
from pgcli.cli.ui import stdout
from pgcli.cli.ui.console import Screen
from pgcli.doctor.finding import Finding, bad, ok
from pgcli.errors import NoUsableDevice, UsageError
from pgcli.printable import printable

COLOURS = {"ok": "green", "warn": "yellow", "bad": "bold red"}


def examine(commands: Mapping[str, Any], *, online: bool, as_json: bool) -> None:
    """Print every finding. Raises NoUsableDevice where no model can run here; else all is said."""
    with Screen().status("looking at this machine"):
        findings = [settings_file(commands), *doctor.examine(online=online)]
    if as_json:
        told = {"state": worst(findings), "checks": [asdict(finding) for finding in findings]}
        stdout.print_json(told)
    elif stdout.draws_tables():
        stdout.print_tables(table(findings), summary(findings))
    else:
        for f in findings:
            stdout.print_cells((f.state, f.name, f.found, f.remedy))
    if not doctor.has_device(findings):
        broken = next(f for f in findings if f.state == "bad" and f.name == "pytorch")
        raise NoUsableDevice(f"no model can run here: PyTorch {broken.found}", hint=broken.remedy)


def settings_file(commands: Mapping[str, Any], file: Path | None = None) -> Finding:
    """Whether the user's configuration file says what can be meant."""
    file = file or config.config_path()
    try:
        config.read_config(file, config.settable_options(commands))
    except UsageError as problem:
        return bad("settings", str(problem), problem.hint or f"mend or remove {file}")
    return ok("settings", str(file) if file.exists() else f"defaults; {file} would change them")


def worst(findings: list[Finding]) -> str:
    states = {finding.state for finding in findings}
    return next((state for state in ("bad", "warn") if state in states), "ok")


def summary(findings: list[Finding]) -> str:
    """What it comes to, in a line."""
    troubles = sum(finding.state != "ok" for finding in findings)
    if not troubles:
        return "all is well"
    return f"{troubles} to look at; what mends each stands below it"


def table(findings: list[Finding]) -> Table:
    """State, name and finding, a line each; below a trouble, what mends it."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for f in findings:
        colour = COLOURS[f.state]
        grid.add_row(Text(f.state, colour), Text(printable(f.name)), Text(printable(f.found)))
        if f.state != "ok":
            grid.add_row("", "", Text(f"→ {printable(f.remedy)}", "bold"))
    return grid
