"""--dry-run: the plan, and an estimate of time and disk space from a few images."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from rich.filesize import decimal

from pgcli.checkpoints.find import DEMO, find_local
from pgcli.cli.job import loading
from pgcli.cli.job.destination import check_output
from pgcli.cli.job.input import RunInput, open_input
from pgcli.cli.job.plan import Plan
from pgcli.cli.job.plan_table import plan_table
from pgcli.cli.job.side_outputs import open_row_hooks
from pgcli.cli.job.stages import answer_stage, decode_stage
from pgcli.cli.ui.console import Facts, Screen
from pgcli.cli.ui.duration import duration
from pgcli.pipeline import answers
from pgcli.records import Answer, error_answer
from pgcli.rows import json_text

if TYPE_CHECKING:
    from pgcli.engine.engine import InferenceEngine

SAMPLE_IMAGES = 16  # an input of no more images gets no estimate


def dry_run(plan: Plan, screen: Screen) -> int:
    """Check everything, print the plan and the estimate, and return exit code 0."""
    check_output(plan)
    input = open_input(plan)
    open_row_hooks(input, screen)
    screen.table(plan_table(input))
    screen.table(estimate(input, screen))
    return 0


def estimate(input: RunInput, screen: Screen) -> Facts:
    """Time and disk space of the whole run, measured on a sample.

    Empty for few images, and for standard input, whose length is unknown. No model is downloaded.
    """
    plan, rows = input.plan, input.rows
    if screen.quiet or rows is None or (input.images or 0) <= SAMPLE_IMAGES:
        return []
    checkpoint = find_local(plan.options.model.model or DEMO, plan.options.model.revision)
    if checkpoint is None:
        return [("time", "unknown before the model is on this machine")]
    began = perf_counter()
    engine = loading.load_model(plan, screen, checkpoint)
    loaded = perf_counter()
    with screen.status(f"answering {SAMPLE_IMAGES} of the images"):
        answered = answer_sample(input, engine)
    sample_seconds = perf_counter() - loaded
    total_seconds = loaded - began + sample_seconds / len(answered) * rows
    rate = f"{len(answered) / sample_seconds:.1f} rows/s, by {SAMPLE_IMAGES} images"
    facts = [("time", f"about {duration(total_seconds)}; {rate}")]
    if plan.options.output.output != "-":
        facts.append(("disk", disk_space(plan, answered, rows)))
    return facts


def answer_sample(input: RunInput, engine: InferenceEngine) -> list[Answer]:
    """The rows of a few images at equal distances in the input."""
    options = replace(input.options.input, sample=SAMPLE_IMAGES, limit=None)
    plan = replace(input.plan, options=replace(input.options, input=options))
    sample = replace(input, plan=plan)
    refuse = partial(error_answer, task=plan.question.task, model=engine.label)
    decode = decode_stage(sample, engine.spec, lambda: False, resumes=False)
    ask = answer_stage(plan, engine, lambda: False)
    return list(answers(sample.items(), decode, ask, refuse))


def disk_space(plan: Plan, sample: list[Answer], rows: int) -> str:
    """The size of all rows as JSON lines, and the free space of the disk they go to."""
    bytes_per_row = [len(json_text(plan.row_schema.row(answer)).encode()) + 1 for answer in sample]
    size = sum(bytes_per_row) / len(sample) * rows
    free = shutil.disk_usage(Path(plan.options.output.output).absolute().parent).free
    return f"about {decimal(round(size))} as JSON lines, {decimal(free)} free"
