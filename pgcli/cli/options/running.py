"""The options of the panel Running."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

from pgcli.cli.option import option
from pgcli.cli.options.shared import MaxErrors, OnError, Quiet, error_budget

if TYPE_CHECKING:
    from pgcli.pipeline.error_budget import ErrorBudget

_running = partial(option, "Running")


@dataclass(frozen=True, slots=True)
class RunningOptions:
    """What a run does about errors, and how much it prints."""

    on_error: OnError = "record"
    max_errors: MaxErrors = None
    retry_errors: Annotated[
        bool,
        _running("--retry-errors", help="Ask the rows with errors again and keep the others."),
    ] = False
    moved: Annotated[
        bool,
        _running("--moved", help="Resume although the images are in another place than before."),
    ] = False
    verify_input: Annotated[
        bool,
        _running("--verify-input", help="Resuming, read the images of all saved rows again."),
    ] = False
    dry_run: Annotated[
        bool, _running("--dry-run", help="Check everything, print the plan, and exit.")
    ] = False
    probe: Annotated[
        bool,
        _running("--probe", help="With --dry-run, load even a large model to estimate the time."),
    ] = False
    summary_json: Annotated[
        str | None,
        _running(
            "--summary-json",
            metavar="FILE",
            help="Write counts, errors and times by stage as a JSON object, also of a failed run.",
        ),
    ] = None
    quiet: Quiet = False
    verbose: Annotated[bool, _running("--verbose", "-v", help="Print the plan before running.")] = (
        False
    )

    @property
    def error_budget(self) -> ErrorBudget:
        """How many error rows end the run."""
        return error_budget(self.max_errors, self.on_error)
