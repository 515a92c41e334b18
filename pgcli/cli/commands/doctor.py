"""doctor: what is wrong on this machine, and the command that fixes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from pgcli.cli import config
from pgcli.cli.config import find_config
from pgcli.cli.options import option
from pgcli.cli.program_command import PgcliCommand
from pgcli.cli.shared_options import Json
from pgcli.cli.typer_app import PgcliGroup, command
from pgcli.cli.ui import stdout
from pgcli.cli.ui.console import Screen
from pgcli.errors import Difference, NoUsableDevice, UsageError
from pgcli.printable import printable
from pgcli.wording import count

if TYPE_CHECKING:
    from pgcli.doctor.finding import Finding

COLOURS = {"ok": "green", "warn": "yellow", "bad": "bold red"}


class DoctorCommand(PgcliCommand):
    """Reports an invalid configuration file as one of its findings."""

    reads_config = False


@command(
    "doctor",
    "Checks packages, PyTorch and its build, driver, memory, disk, the Hub's cache and login. "
    "Changes nothing. Exits with 17 if no model can run here, otherwise with 0, whatever the "
    "problems; with --strict, with 5 if anything is bad.",
    cls=DoctorCommand,
    epilog="$ pgcli doctor\n$ pgcli doctor --online --json",
)
def doctor(
    context: typer.Context,
    online: Annotated[
        bool, option("Running", "--online", help="Also check that the Hub answers and the token.")
    ] = False,
    strict: Annotated[
        bool, option("Running", "--strict", own=True, help="Exit with 5 if a check is bad.")
    ] = False,
    json: Json = False,
) -> None:
    from pgcli.doctor import examine, has_device

    assert context.parent is not None
    assert isinstance(context.parent.command, PgcliGroup)
    with Screen().status("checking this machine"):
        settings = check_config(context.parent.command.commands, context.obj.config)
        findings = [settings, *examine(online=online)]
    show(findings, as_json=json)
    if not has_device(findings):
        broken = next(f for f in findings if f.state == "bad" and f.name == "pytorch")
        raise NoUsableDevice(f"no model can run here: PyTorch {broken.found}", hint=broken.remedy)
    bad = [finding for finding in findings if finding.state == "bad"]
    if strict and bad:
        names = ", ".join(finding.name for finding in bad)
        raise Difference(f"bad on this machine: {names}", hint=bad[0].remedy)


def check_config(commands: Mapping[str, Any], given: str | None = None) -> Finding:
    """Whether the configuration file, that of `--config` if it is given, is valid."""
    from pgcli.doctor.finding import bad, ok

    try:
        file = find_config(given)
        config.read_config(file, commands)
    except UsageError as problem:
        return bad("settings", str(problem), problem.hint)
    return ok("settings", str(file) if file.exists() else f"defaults; {file} would change them")


def show(findings: list[Finding], *, as_json: bool) -> None:
    """Print the findings as one JSON object, as a table, or as lines of cells in a pipe."""
    if as_json:
        checks = [asdict(finding) for finding in findings]
        stdout.print_json({"state": worst_state(findings), "checks": checks})
    elif stdout.draws_tables():
        stdout.print_tables(table(findings), summary(findings))
    else:
        for f in findings:
            stdout.print_cells((f.state, f.name, f.found, f.remedy))


def worst_state(findings: list[Finding]) -> str:
    states = {finding.state for finding in findings}
    return next((state for state in ("bad", "warn") if state in states), "ok")


def summary(findings: list[Finding]) -> str:
    """The number of problems, in one line."""
    problems = sum(finding.state != "ok" for finding in findings)
    if not problems:
        return "no problems found"
    return f"{count(problems, 'problem')}; the line below each one shows how to fix it"


def table(findings: list[Finding]) -> Table:
    """State, name and finding, one line each; below a problem, how to fix it."""
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
