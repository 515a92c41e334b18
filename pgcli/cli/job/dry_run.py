"""--dry-run: the plan, and an estimate of time and disk space from a few images."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter

from rich.filesize import decimal

from pgcli.checkpoints.find import find_local
from pgcli.cli.job import loading
from pgcli.cli.job.destination import Destination, DestinationFormat, check_output
from pgcli.cli.job.draw.option import check_drawn_images
from pgcli.cli.job.input import RunInput, open_input
from pgcli.cli.job.plan import Plan
from pgcli.cli.job.plan_table import plan_table
from pgcli.cli.job.run_task import RunEngine
from pgcli.cli.job.stages import decode_stage
from pgcli.cli.ui.console import Facts, Screen
from pgcli.cli.ui.duration import duration
from pgcli.pipeline import answers
from pgcli.records import Answer, error_answer
from pgcli.rows import RowSchema
from pgcli.sinks.lines import json_line
from pgcli.sinks.text import text_lines

LARGE_MODEL = 10**9  # bytes of weights; a larger model is loaded only with --probe
SAMPLE_IMAGES = 16  # an input of no more images gets no estimate


def dry_run(plan: Plan, screen: Screen) -> int:
    """Check everything, print the plan and the estimate, and return exit code 0."""
    destination = check_output(plan)
    input = open_input(plan, screen)
    check_drawn_images(input)
    screen.table(plan_table(input))
    screen.table(estimate(input, destination, screen))
    return 0


def estimate(input: RunInput, destination: Destination, screen: Screen) -> Facts:
    """Time and disk space of the whole run, measured on a sample.

    Empty for few images, and for standard input, whose length is unknown. No model is downloaded,
    and a large one is loaded only with `--probe`.
    """
    plan, rows = input.plan, input.rows
    if screen.quiet or rows is None or (input.images or 0) <= SAMPLE_IMAGES:
        return []
    checkpoint = find_local(plan.model, plan.options.model.revision)
    if checkpoint is None:
        return [("time", "unknown before the model is on this machine")]
    size = weight_bytes(checkpoint.folder)
    if size > LARGE_MODEL and not plan.options.running.probe:
        loads = f"--probe loads the model, {decimal(size)}, and answers {SAMPLE_IMAGES} images"
        return [("time", f"not estimated: {loads}")]
    began = perf_counter()
    engine = loading.load_model(plan, screen, checkpoint)
    loaded = perf_counter()
    with screen.status(f"answering {SAMPLE_IMAGES} of the images"):
        answered = answer_sample(input, engine)
    sample_seconds = perf_counter() - loaded
    total_seconds = loaded - began + sample_seconds / len(answered) * rows
    rate = f"{len(answered) / sample_seconds:.1f} rows/s, by {SAMPLE_IMAGES} images"
    facts = [("time", f"about {duration(total_seconds)}; {rate}")]
    if destination.format != "stream":
        facts.append(("disk", disk_space(input, destination, answered, rows)))
    return facts


def weight_bytes(folder: Path) -> int:
    """The size of a checkpoint's weights."""
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def answer_sample(input: RunInput, engine: RunEngine) -> list[Answer]:
    """The rows of a few images at equal distances in the input."""
    options = replace(input.options.input, sample=SAMPLE_IMAGES, limit=None, shard=None)
    plan = replace(input.plan, options=replace(input.options, input=options))
    sample = replace(input, plan=plan)
    refuse = partial(error_answer, task=plan.question.task, model=engine.label)
    decode = decode_stage(
        sample, engine.spec, engine.device, lambda: False, resumes=False, stamps=False
    )
    ask = plan.task.stage(engine, lambda: False)
    return list(answers(sample.items(), decode, ask, refuse))


def disk_space(input: RunInput, destination: Destination, sample: list[Answer], rows: int) -> str:
    """The size of all rows in the format asked for, and the free space of the disk they go to."""
    name, size_of = FORMATS[destination.format]
    schema, half = input.row_schema, len(sample) // 2
    begun, whole = size_of(schema, sample[:half]), size_of(schema, sample)
    # what a file has besides its rows is in both sizes
    size = begun + (whole - begun) / (len(sample) - half) * (rows - half)
    needs = f"about {decimal(round(size))} as {name}"
    if input.plan.is_stored:
        return needs
    free = shutil.disk_usage(Path(input.options.output.output).absolute().parent).free
    return f"{needs}, {decimal(free)} free"


def jsonl_size(schema: RowSchema, answers: list[Answer]) -> int:
    """The bytes of the rows as JSON lines."""
    return sum(len(json_line(answer, schema).encode()) for answer in answers)


def text_size(schema: RowSchema, answers: list[Answer]) -> int:
    """The bytes of the rows as text."""
    return sum(len(text_lines(answer).encode()) for answer in answers)


def parquet_size(schema: RowSchema, answers: list[Answer]) -> int:
    """The bytes of a Parquet file of the rows."""
    from pgcli.sinks.parquet_file import file_size  # pyarrow is slow to import

    return file_size([schema.row(answer) for answer in answers], schema)


#: The name of each format, and the size of rows in it.
FORMATS: Mapping[DestinationFormat, tuple[str, Callable[[RowSchema, list[Answer]], int]]] = {
    "jsonl": ("JSON lines", jsonl_size),
    "text": ("text", text_size),
    "parquet": ("Parquet", parquet_size),
    "folder": ("Parquet", parquet_size),
}
