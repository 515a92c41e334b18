"""A run whose rows an earlier run saved already, and the check of their number."""

from __future__ import annotations

from pgcli.cli.exit_codes import INCOMPLETE
from pgcli.cli.job.input import RunInput
from pgcli.cli.job.output import RunOutput, has_unchanged_image, publish
from pgcli.cli.job.row_hooks import RowHooks
from pgcli.cli.ui.console import Screen
from pgcli.errors import OutputExists


def is_complete(input: RunInput, output: RunOutput) -> bool:
    """Whether every row is saved and none of them is asked again.

    Raises OutputExists if the output has more rows than the input.
    """
    check_row_count(input, output, input.rows)
    return output.rows == input.rows and not output.retries


def check_row_count(input: RunInput, output: RunOutput, rows: int | None) -> None:
    """Raise OutputExists if the output has more rows than the `rows` of the input.

    `rows` is None where the input has not ended yet.
    """
    if input.options.input.limit is None and rows is not None and output.rows > rows:
        raise OutputExists(
            f"{input.options.output.output} has {output.rows:,} rows, and the input makes only "
            f"{rows:,}",
            hint="name the whole input; another -o starts a new output, --overwrite replaces it",
        )


def already_complete(input: RunInput, output: RunOutput, hooks: RowHooks, screen: Screen) -> int:
    """Finish an output whose rows are all saved, and return the exit code of the run that saved
    them. Raises OutputExists where they are not the rows of the input.

    The hooks are called for each row. That run may have been killed before it renamed its last
    file, so the sink is closed here. A shard without rows creates nothing.
    """
    if not output.rows:
        screen.info("nothing to do: the shard has no row of the input")
        return 0
    assert output.resume_log is not None
    row_index = 0
    with output.sink:
        for item in hooks.wrap_items(input.items(has_unchanged_image(input, output))):
            row_index = row_index if item.row is None else item.row
            for prompt in item.prompts:
                output.resume_log.is_missing(row_index, item, prompt)
                hooks.on_skipped_row(item, row_index)
                row_index += 1
    publish(input, output, screen)
    options = input.options.output
    if options.draw is not None:
        screen.info("saved rows are not drawn again", hint="pgcli view --draw DIR draws them")
    if options.sidecar is not None:
        screen.table(hooks.facts())
    if output.state is not None:
        output.state.update_record()
    errors = output.errors.total()
    with_errors = f", {errors:,} with errors" if errors else ""
    if errors and not input.plan.is_stored:
        with_errors += " (--retry-errors asks them again)"
    screen.info(f"nothing to do: all {output.rows:,} rows are saved{with_errors}")
    return INCOMPLETE if errors else 0
