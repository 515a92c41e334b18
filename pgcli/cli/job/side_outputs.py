"""The side outputs that the options name: `--draw`, `--sidecar`, `--inline`, `--view`."""

from __future__ import annotations

from pgcli.cli.job.draw.option import check_draw, make_drawing
from pgcli.cli.job.html_report import check_report, make_report
from pgcli.cli.job.inline import make_inline
from pgcli.cli.job.input import RunInput
from pgcli.cli.job.other_labels import OtherLabels
from pgcli.cli.job.plan import Plan
from pgcli.cli.job.row_hooks import RowHooks
from pgcli.cli.job.sidecars import check_sidecars, make_sidecars
from pgcli.cli.ui.console import Screen
from pgcli.errors import UsageError
from pgcli.tasks import Question


def check_side_outputs(plan: Plan, *, resumes: bool = False) -> None:
    """Raise for a side output that cannot be written. The input is not opened.

    A resumed run may draw into its own folder. Raises UsageError, OutputExists, OutputFailed.
    """
    check_columns(plan)
    check_sidecars(plan)
    check_draw(plan, resumes=resumes)
    check_report(plan)


def check_columns(plan: Plan) -> None:
    """Raise UsageError for a side output of what the rows do not have."""
    output, question = plan.options.output, plan.question
    for option, is_given, column, need in (
        ("--draw", output.draw, "boxes", "draws boxes"),
        ("--sidecar", output.sidecar, "answer", "writes answers"),
        ("--view", output.view, "image", "shows images"),
        ("--inline", output.inline, "image", "shows images"),
    ):
        if is_given and column not in question.columns:
            raise UsageError(
                f"{option} {need}, and the rows of {question.task} have none",
                hint=f"leave {option} out",
            )


def make_row_hooks(input: RunInput, screen: Screen) -> RowHooks:
    """The hooks that write the side outputs.

    Nothing is created before the `with` block of the hooks is entered.
    """
    question = input.plan.question
    return RowHooks(
        sidecars=make_sidecars(input),
        drawn=make_drawing(input, screen.info),
        inline=make_inline(input.plan),
        page=make_report(input),
        labels=OtherLabels(question)
        if isinstance(question, Question) and question.objects
        else None,
    )
