"""doctor: check this machine and print the command that fixes each problem."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from pgcli.cli.config import find_config, read_config_file
from pgcli.cli.options import CliCall, JsonOptions, command
from pgcli.cli.ui import stdout
from pgcli.cli.ui.console import Screen
from pgcli.declare import opt
from pgcli.errors import Difference, NoUsableDevice, UsageError
from pgcli.text import count, printable

if TYPE_CHECKING:
    from pgcli.doctor.finding import Finding

COLOURS = {"ok": "green", "warn": "yellow", "bad": "bold red"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions(JsonOptions):
    """The options of `doctor`."""

    exit_code: bool = opt(
        "Exit with 5 if any check fails.", panel="How to run", default=False, own=True
    )


@command(
    "doctor",
    "Checks packages, PyTorch and its build, driver, memory, disk, the Hub's cache and login. "
    "Changes nothing. Exits with 17 if no model can run here, otherwise with 0, whatever the "
    "problems; with --exit-code, with 5 if any check fails.",
    DoctorOptions,
    examples="$ pgcli doctor\n$ pgcli doctor --json",
    reads_config=False,  # an invalid file is one of the findings
)
def doctor(call: CliCall) -> None:
    from pgcli.doctor import examine, has_device

    options = call.build(DoctorOptions)
    with Screen().status("checking this machine"):
        settings = check_config(call.values.get("config") or os.environ.get("PGCLI_CONFIG"))
        findings = [settings, *examine()]
    show_findings(findings, as_json=options.json)
    if not has_device(findings):
        broken = next(f for f in findings if f.state == "bad" and f.name == "pytorch")
        message = f"no model can run here: PyTorch {broken.description}"
        raise NoUsableDevice(message, hint=broken.remedy)
    bad = [finding for finding in findings if finding.state == "bad"]
    if options.exit_code and bad:
        names = ", ".join(finding.name for finding in bad)
        raise Difference(f"bad on this machine: {names}", hint=bad[0].remedy)


def check_config(named: str | None) -> Finding:
    """Whether the configuration file, the named one or the user's, is valid."""
    from pgcli.doctor.finding import bad, ok

    try:
        file = find_config(named)
        read_config_file(file)
    except UsageError as problem:
        return bad("settings", str(problem), problem.hint)
    return ok("settings", str(file) if file.exists() else f"defaults; {file} would change them")


def show_findings(findings: list[Finding], *, as_json: bool) -> None:
    """Print the findings as one JSON object, as a table, or as lines of cells in a pipe."""
    if as_json:
        checks = [asdict(finding) for finding in findings]
        stdout.print_json({"state": worst_state(findings), "checks": checks})
    elif stdout.draws_tables():
        stdout.print_tables(findings_table(findings), summary(findings))
    else:
        for f in findings:
            stdout.print_cells((f.state, f.name, f.description, f.remedy))


def worst_state(findings: list[Finding]) -> str:
    states = {finding.state for finding in findings}
    return next((state for state in ("bad", "warn") if state in states), "ok")


def summary(findings: list[Finding]) -> str:
    """The number of problems, in one line."""
    problems = sum(finding.state != "ok" for finding in findings)
    if not problems:
        return "no problems found"
    return f"{count(problems, 'problem')}; the line below each one shows how to fix it"


def findings_table(findings: list[Finding]) -> Table:
    """State, name and finding, one line each; below a problem, how to fix it."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for f in findings:
        colour = COLOURS[f.state]
        grid.add_row(Text(f.state, colour), Text(printable(f.name)), Text(printable(f.description)))
        if f.state != "ok":
            grid.add_row("", "", Text(f"→ {printable(f.remedy)}", "bold"))
    return grid
