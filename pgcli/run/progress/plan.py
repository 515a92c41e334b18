"""The plan of a run as facts, and `--dry-run`: what a run would do and take."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO
from pathlib import Path
from shutil import disk_usage
from time import perf_counter
from typing import TYPE_CHECKING

from pgcli.checkpoints.find import find_local
from pgcli.checkpoints.weight_files import total_bytes
from pgcli.inputs.paths import url_scheme
from pgcli.output.lines import json_line
from pgcli.output.text import text_lines
from pgcli.records import Answer
from pgcli.run.checks import format_of
from pgcli.run.progress.summary import ignored_facts
from pgcli.run.rows import FILE_ROWS, RunRows, row_schema
from pgcli.run.task import find_checkpoints, model_name
from pgcli.wording import duration, file_size

if TYPE_CHECKING:
    import pyarrow

    from pgcli.run.request import RunRequest
    from pgcli.run.run import Run

LARGE_MODEL = 10**9  # bytes of weights; a larger model is not loaded for an estimate
SAMPLE_IMAGES = 16  # an input of no more images gets no estimate


def plan_facts(
    request: RunRequest, rows: RunRows, question: Iterable[tuple[str, str]]
) -> list[tuple[str, str]]:
    """Names and values of what the run is going to do."""
    options, per_item = request, rows.per_item or 1
    of_each = f", {per_item} for each image" if per_item > 1 else ""
    output = options.output
    optional = [
        ("adapter", options.model.adapter),
        ("quantized", None if options.model.quantize == "none" else options.model.quantize),
        ("output", "standard output" if output.output == "-" else output.output),
        ("drawn in", output.draw),
        ("sidecars", output.sidecar),
    ]
    kinds = sorted(rows.inventory.kinds.items(), key=lambda kind: (-kind[1], kind[0]))
    named = options.model.model or f"{model_name(request)}, the built-in one"
    return [
        ("images", number(rows.images, "as many as come on standard input")),
        *([("kinds", ", ".join(f"{count:,} {kind}" for kind, count in kinds))] if kinds else []),
        *ignored_facts(rows.inventory.ignored),
        *(("include", pattern) for pattern in options.input.include),
        *(("exclude", pattern) for pattern in options.input.exclude),
        ("rows", number(rows.total, "as many as lines come") + of_each),
        *question,
        ("model", named),
        *((name, value) for name, value in optional if value),
    ]


def number(value: int | None, unknown: str) -> str:
    """The number with thousands separators, or the words for an unknown one."""
    return unknown if value is None else f"{value:,}"


def estimate(run: Run) -> Sequence[tuple[str, str]]:
    """Time and size of all rows, measured on a few of the images, and the free space for them.

    Empty for few images, and for standard input, whose length is unknown. No model is downloaded,
    and a large one is not loaded.
    """
    request, rows = run.request, run.rows
    total = rows.total
    if total is None or (rows.images or 0) <= SAMPLE_IMAGES:
        return []
    checkpoint = find_local(model_name(request), request.model.revision)
    if checkpoint is None:
        return [("time", "unknown before the model is on this machine"), *free_space(request)]
    if total_bytes(checkpoint.folder) > LARGE_MODEL:
        time = "not estimated, as the model is large: --limit 16 measures it"
        return [("time", time), *free_space(request)]
    run.model.checkpoint, run.model.adapter = find_checkpoints(request)
    per_item = rows.per_item or 1
    step = (total // per_item) // SAMPLE_IMAGES * per_item
    starts = range(0, step * SAMPLE_IMAGES, step)
    items = (pair for row in starts for pair in rows.numbered(range(row, row + per_item)))
    with run.decoding(items, SAMPLE_IMAGES) as images:
        answers, began = run.load(), perf_counter()
        loading = began - run.progress.began
        sample = [row for _, _, row in answers(images.take(None, run.tally))]
    seconds = perf_counter() - began
    rate = len(sample) / seconds
    time = f"about {duration(loading + total / rate)}; {rate:.1f} rows/s"
    return [
        ("time", f"{time}, by {SAMPLE_IMAGES} images"),
        ("size", estimated_size(run, sample, starts)),
        *free_space(request),
    ]


def estimated_size(run: Run, sample: Sequence[Answer], starts: Iterable[int]) -> str:
    """The size of the output, and of what is beside it until then, by a sample of its rows.

    `starts` are the numbers of the first row of each image of the sample.
    """
    request, rows, total = run.request, run.rows, run.rows.total or 0
    name = format_of(request)
    is_parquet = name in ("parquet", "folder")
    schema = row_schema(request, rows.inventory.kept, exact=is_parquet)
    lines = [text_lines(row) if name == "text" else json_line(row, schema) for row in sample]
    size = of_lines = sum(len(line.encode()) for line in lines) * total / len(lines)
    if is_parquet:
        import pyarrow

        from pgcli.output.schema import rows_table

        kept = [rows.kept(start, start + (rows.per_item or 1)) for start in starts]
        tables = [table for table in kept if table is not None]
        table = pyarrow.concat_tables(tables) if tables else None
        values = [json.loads(line) for line in lines]
        half = len(values) // 2
        small, large = (
            parquet_size(rows_table(values[:n], schema, table and table.slice(0, n)))
            for n in (half, len(values))
        )
        # the first rows pay for what each file has once
        size = large + (total - len(values)) * (large - small) / (len(values) - half)
    kind = "Parquet" if is_parquet else "text" if name == "text" else "JSON lines"
    text = f"about {file_size(round(size))} as {kind}"
    if name in ("stream", "text"):
        return text
    beside = sum(generation.nbytes for generation in rows.inventory.generations)
    if is_parquet:  # rows are lines until those of a file are complete
        file_rows = request.output.rows_per_file or FILE_ROWS
        beside += round(of_lines * (min(1.0, file_rows / total) if name == "folder" else 1))
    return f"{text}, and {file_size(beside)} beside it during the run"


def parquet_size(table: pyarrow.Table) -> int:
    """The bytes of a Parquet file of the rows."""
    from pgcli.output.parquet import write_parquet

    file = BytesIO()
    write_parquet(file, [table])
    return len(file.getvalue())


def free_space(request: RunRequest) -> Iterator[tuple[str, str]]:
    """What is free on the disk that the output is on, if it is on one of this machine."""
    output = request.output.output
    if output == "-" or url_scheme(output) is not None:
        return
    folder = Path(os.path.realpath(output))
    while not folder.is_dir():
        folder = folder.parent
    yield "free", f"{file_size(disk_usage(folder).free)} on the disk of {output}"
