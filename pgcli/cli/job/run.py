"""The commands that make rows: from sources on the command line to saved rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter

from pgcli.checkpoints.find import Checkpoint
from pgcli.cli.exit_codes import INCOMPLETE
from pgcli.cli.job import loading, summary
from pgcli.cli.job.completion import already_complete, is_complete
from pgcli.cli.job.demo_limit import DEMO_IMAGES, DemoLimit, demo_limit_error
from pgcli.cli.job.destination import check_output
from pgcli.cli.job.draw.option import check_drawn_images
from pgcli.cli.job.dry_run import dry_run
from pgcli.cli.job.engines.engines_task import with_engines
from pgcli.cli.job.input import RunInput, check_known_rows, open_input
from pgcli.cli.job.notices import print_notices
from pgcli.cli.job.output import RunOutput, has_unchanged_image, open_output, publish
from pgcli.cli.job.pipeline import Job, run_pipeline
from pgcli.cli.job.plan import Plan, make_plan
from pgcli.cli.job.plan_table import plan_table
from pgcli.cli.job.row_hooks import RowHooks
from pgcli.cli.job.run_images import open_images
from pgcli.cli.job.run_settings import model_settings, run_metadata
from pgcli.cli.job.run_summary import RunSummary, summarized
from pgcli.cli.job.run_task import RunEngine, RunTask
from pgcli.cli.job.side_outputs import make_row_hooks
from pgcli.cli.job.sidecars import count_kept_texts
from pgcli.cli.options import JobOptions
from pgcli.cli.ui.console import Screen
from pgcli.records import Item


def run_command(sources: Sequence[str], task: RunTask, options: JobOptions) -> int:
    """Make the rows of every item; return 3 if a row has an error, else 0."""
    screen = Screen(quiet=options.running.quiet)
    plan = make_plan(sources, task, options)
    if options.running.dry_run:
        return dry_run(plan, screen)
    with summarized(plan, screen) as run_summary:
        run_summary.exit_code = run_job(plan, screen, run_summary)
        return run_summary.exit_code


def run_job(plan: Plan, screen: Screen, run_summary: RunSummary) -> int:
    """Check the destination, open the input and the output, load the model, run, report.

    What is cheap to refuse is refused first: the destination before the input is counted, the
    input before the model is loaded.
    """
    destination = check_output(plan)
    input = open_input(plan, screen)
    input.plan = plan = replace(plan, task=with_engines(input))
    show_plan(input, screen)
    check_drawn_images(input)
    if plan.claims_chunks:
        check_known_rows(input)
    hooks = make_row_hooks(input, screen)
    with open_output(input, destination, screen, header=hooks.header) as output:
        run_summary.on_output(input, output)
        if output.state is not None:
            output.state.expect(output.rows, input.rows, input.rows_of_all_shards)
        if is_complete(input, output):
            code = finish_complete(input, output, hooks, screen)
        elif has_all_texts(input, screen):
            code = 0
        elif plan.claims_chunks:
            engine = compute_free_chunks(input, output, screen, run_summary)
            code = report(input, output, engine, hooks, screen, run_summary)
        else:
            code = answer_images(input, output, hooks, screen, run_summary)
        if output.state is not None:
            output.state.exit_code = code
    return code


def show_plan(input: RunInput, screen: Screen) -> None:
    """Print the plan with `--verbose`."""
    if input.options.running.verbose:
        screen.table(plan_table(input))


def finish_complete(input: RunInput, output: RunOutput, hooks: RowHooks, screen: Screen) -> int:
    """Finish an output whose rows are all saved, and return its exit code."""
    code = already_complete(input, output, hooks, screen)
    hooks.on_complete(quiet=screen.quiet)
    return code


def has_all_texts(input: RunInput, screen: Screen) -> bool:
    """Whether every image has a text that is kept, and texts are the only output."""
    input.kept_texts = count_kept_texts(input, screen)
    if not input.kept_texts or input.kept_texts != input.images:
        return False
    ending = input.options.output.sidecar
    screen.info(
        f"nothing to do: the texts ending in {ending} of all {input.kept_texts:,} images are kept",
        hint="--overwrite replaces those that pgcli wrote, --overwrite-edited all; with -o all "
        "images are asked",
    )
    return True


def answer_images(
    input: RunInput, output: RunOutput, hooks: RowHooks, screen: Screen, run_summary: RunSummary
) -> int:
    """Load the model, answer every image that has no row, and return the exit code."""
    print_notices(input.plan, screen)
    checkpoint = loading.find_model(input.plan, screen)
    items = limited_items(input, output)
    with open_images(input, output, hooks.wrap_items(items), checkpoint) as images:
        engine = load_engine(input.plan, checkpoint, output, screen)
        run_summary.on_model(engine)
        job = Job(input, images, output, engine, hooks, screen, run_summary)
        run_summary.tally = run_pipeline(job)
    publish(input, output, screen)
    code = report(input, output, engine, hooks, screen, run_summary)
    if isinstance(items, DemoLimit) and items.exceeded:
        raise demo_limit_error(f"more than {DEMO_IMAGES} images", input.plan.task)
    return code


def load_engine(plan: Plan, checkpoint: Checkpoint, output: RunOutput, screen: Screen) -> RunEngine:
    """The loaded model. Raises OutputExists if another model made the saved rows."""
    engine = loading.load_model(plan, screen, checkpoint)
    with screen.status("comparing the model's files"):
        output.add_model(model_settings(plan, engine), run_metadata(plan, engine))
    print_versions(output, screen)
    return engine


def compute_free_chunks(
    input: RunInput, output: RunOutput, screen: Screen, run_summary: RunSummary
) -> RunEngine:
    """Compute the chunks of the output that no other process does, here or on a cluster."""
    print_notices(input.plan, screen)
    if input.options.model.ray is not None:
        from pgcli.cli.job.chunks.ray_run import run_on_ray

        return run_on_ray(input, output, screen, run_summary)
    from pgcli.cli.job.chunks.shared_run import local_reports, run_shared  # it imports pyarrow

    checkpoint = loading.find_model(input.plan, screen)
    engine = load_engine(input.plan, checkpoint, output, screen)
    run_summary.on_model(engine)
    run_shared(input, output, screen, run_summary.tally, partial(local_reports, engine, screen))
    return engine


def print_versions(output: RunOutput, screen: Screen) -> None:
    """Print which versions have changed since the saved rows; the next run finds its own."""
    if output.state is not None and (changes := output.state.changed_versions):
        screen.info(
            f"the saved rows were made with other versions: {'; '.join(changes)}",
            hint="answers may differ slightly; the run's record keeps both",
        )


def limited_items(input: RunInput, output: RunOutput) -> Iterable[Item]:
    """The items to answer; for the built-in model, unless it is named, the first of them."""
    items = input.items(has_unchanged_image(input, output))
    return DemoLimit(items) if input.plan.uses_default_model else items


def report(
    input: RunInput,
    output: RunOutput,
    engine: RunEngine,
    hooks: RowHooks,
    screen: Screen,
    run_summary: RunSummary,
) -> int:
    """Print the summary, write the page of `--view`, and return the exit code."""
    tally, loading_seconds = run_summary.tally, run_summary.loading_seconds
    times = summary.RunTimes(perf_counter() - run_summary.began, loading_seconds)
    summary.show(screen, input, engine, tally, times, hooks.facts())
    hooks.on_complete(quiet=screen.quiet)
    return INCOMPLETE if tally.errors or output.errors else 0
