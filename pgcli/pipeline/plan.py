"""The plan of a run: its images, question, model and output, and its estimated time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from time import perf_counter
from typing import TYPE_CHECKING

from pgcli.checkpoints.find import find_local
from pgcli.checkpoints.weight_files import total_bytes
from pgcli.device.cgroup import processors
from pgcli.pipeline.answering import Answering
from pgcli.pipeline.checks import shard_of
from pgcli.pipeline.model import RunModel
from pgcli.pipeline.progress.run_progress import RunProgress
from pgcli.pipeline.rows import RunRows
from pgcli.pipeline.task import model_name, question_facts
from pgcli.records import Answer
from pgcli.wording import count, duration

if TYPE_CHECKING:
    from pgcli.pipeline.request import RunRequest

LARGE_MODEL = 10**9  # bytes of weights; --dry-run loads no larger model
#: `--dry-run` estimates the time of more than MIN_IMAGES images, by SAMPLE_IMAGES of them or as
#: many as are answered in SAMPLE_SECONDS.
MIN_IMAGES, SAMPLE_IMAGES, SAMPLE_SECONDS = 16, 48, 10.0


def plan_facts(request: RunRequest, rows: RunRows) -> list[tuple[str, str]]:
    """The facts of the plan that `--dry-run` and `--verbose` print."""
    per_item = rows.per_item or 1
    of_each = f", {per_item} for each image" if per_item > 1 else ""
    output, shard = request.output, shard_of(request)
    optional = [
        ("adapter", request.model.adapter),
        ("quantized", None if request.model.quantize == "none" else request.model.quantize),
        ("shard", shard and str(shard)),
        ("output", "standard output" if output.output == "-" else output.output),
        ("drawn in", output.draw),
        ("sidecars", output.sidecar),
    ]
    kinds = sorted(rows.inventory.kinds.items(), key=lambda kind: (-kind[1], kind[0]))
    named = request.model.model or f"{model_name(request)}, the built-in one"
    return [
        (
            "images",
            "unknown, from standard input" if rows.images is None else f"{rows.images:,}",
        ),
        *([("kinds", ", ".join(f"{count:,} {kind}" for kind, count in kinds))] if kinds else []),
        *rows.inventory.notes,
        *(("include", pattern) for pattern in request.input.include),
        *(("exclude", pattern) for pattern in request.input.exclude),
        ("rows", ("unknown" if rows.total is None else f"{rows.total:,}") + of_each),
        *question_facts(request),
        ("model", named),
        *((name, value) for name, value in optional if value),
    ]


def estimated_time(
    request: RunRequest, rows: RunRows, model: RunModel, progress: RunProgress
) -> str:
    """The time of a run, estimated from a few answered images; a large model is not loaded."""
    checkpoint = find_local(model_name(request), request.model.revision)
    if checkpoint is None:
        return "unknown until the model is on this machine"
    if total_bytes(checkpoint.folder) > LARGE_MODEL:
        return "not estimated for a large model; --limit 16 measures it"
    model.find()
    images, total = min(SAMPLE_IMAGES, rows.images or 0), rows.total or 0
    if (shard := shard_of(request)) is not None:
        total //= shard.count
    answering = Answering(request, progress, model, rows, ())
    with answering.answers(rows.sample(images), None) as answers:
        end = perf_counter() + SAMPLE_SECONDS
        sample = [row for _, _, row in takewhile(lambda _: perf_counter() < end, answers)]
    if not sample:
        return f"more than {duration(SAMPLE_SECONDS)} for the first image"
    if all(row.error for row in sample):
        return f"unknown: {count(len(sample), 'sampled row')} failed ({sample[0].error})"
    assert model.info is not None
    seconds = row_seconds(sample, model.info.device, engines=len(model.slots(total)))
    expected = duration((progress.summary.loading_seconds or 0.0) + total * seconds)
    return f"about {expected}; {1 / seconds:.1f} rows/s, by {count(len(sample), 'row')}"


def row_seconds(sample: Sequence[Answer], device: str, *, engines: int) -> float:
    """The time for each row of a long run, from the times of a few rows.

    Their total time would mislead: it includes the start of decoding processes. The first half is
    skipped, because a model's first pass is slow. GPUs, one per engine, compute while images are
    decoded. On a CPU one engine uses all cores, so several are hardly faster, and decoding takes
    the same cores.
    """
    rows = sample[len(sample) // 2 :]
    load_ms = {row.index: row.load_ms or 0.0 for row in rows}  # once for all prompts of an image
    decoding = sum(load_ms.values()) / max(1, int(processors()))
    stages = ((row.vision_ms, row.prefill_ms, row.decode_ms) for row in rows)
    computing = sum(ms or 0.0 for row in stages for ms in row)
    busy = computing + decoding if device == "cpu" else max(computing / engines, decoding)
    return max(busy / 1000, 1e-6) / len(rows)
