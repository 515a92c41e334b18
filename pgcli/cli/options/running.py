"""How a run goes on and ends: the options of the panel Running."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

from pgcli.cli.options import values
from pgcli.cli.options.shared import Debug, Quiet, option

if TYPE_CHECKING:
    from pgcli.pipeline.error_budget import ErrorBudget

_running = partial(option, "Running")


@dataclass(frozen=True, slots=True)
class RunningOptions:
    """What a run does about errors, and how much it says."""

    on_error: Annotated[
        Literal["record", "stop"],
        _running(
            "--on-error",
            metavar="WHAT",
            help="record: an unreadable picture is an error row; stop: end at the first one.",
        ),
    ] = "record"
    max_errors: Annotated[
        values.MaxErrors | None,
        _running(
            "--max-errors",
            metavar="N|P%",
            parser=values.max_errors,
            default="50 in a row",
            help="Stop when more rows have errors.",
        ),
    ] = None
    retry_errors: Annotated[
        bool,
        _running("--retry-errors", help="Ask the rows with errors again; the others stay."),
    ] = False
    dry_run: Annotated[
        bool, _running("--dry-run", help="Check everything, say what would be done, and stop.")
    ] = False
    quiet: Quiet = False
    verbose: Annotated[bool, _running("--verbose", "-v", help="Say also what will be done.")] = (
        False
    )
    debug: Debug = False

    @property
    def tolerance(self) -> ErrorBudget:
        """The number of error rows that the run tolerates."""
        from pgcli.pipeline.error_budget import ErrorBudget  # not for --help, which is to be quick

        most, share = self.max_errors or (None, None)
        return ErrorBudget(most, share, stop_on_error=self.on_error == "stop")
