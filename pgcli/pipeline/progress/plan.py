"""The plan of a run as facts, and `--dry-run`: what a run would do and take."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pgcli.checkpoints.find import find_local
from pgcli.checkpoints.weight_files import total_bytes
from pgcli.pipeline import checks
from pgcli.pipeline.rows import RunRows
from pgcli.pipeline.task import model_name

if TYPE_CHECKING:
    from pgcli.pipeline.request import RunRequest

LARGE_MODEL = 10**9  # bytes of weights; a larger model is not loaded for an estimate
SAMPLE_IMAGES = 16  # an input of no more images gets no estimate


def plan_facts(
    request: RunRequest, rows: RunRows, question: Iterable[tuple[str, str]]
) -> list[tuple[str, str]]:
    """Names and values of what the run is going to do."""
    options, per_item = request, rows.per_item or 1
    of_each = f", {per_item} for each image" if per_item > 1 else ""
    output, shard = options.output, checks.shard_of(request)
    optional = [
        ("adapter", options.model.adapter),
        ("quantized", None if options.model.quantize == "none" else options.model.quantize),
        ("shard", shard and str(shard)),
        ("output", "standard output" if output.output == "-" else output.output),
        ("drawn in", output.draw),
        ("sidecars", output.sidecar),
    ]
    kinds = sorted(rows.inventory.kinds.items(), key=lambda kind: (-kind[1], kind[0]))
    named = options.model.model or f"{model_name(request)}, the built-in one"
    return [
        ("images", number_text(rows.images, "as many as come on standard input")),
        *([("kinds", ", ".join(f"{count:,} {kind}" for kind, count in kinds))] if kinds else []),
        *rows.inventory.notes,
        *(("include", pattern) for pattern in options.input.include),
        *(("exclude", pattern) for pattern in options.input.exclude),
        ("rows", number_text(rows.total, "as many as lines come") + of_each),
        *question,
        ("model", named),
        *((name, value) for name, value in optional if value),
    ]


def number_text(value: int | None, unknown: str) -> str:
    """The number with thousands separators, or the words for an unknown one."""
    return unknown if value is None else f"{value:,}"


def why_no_estimate(request: RunRequest) -> str:
    """Why the time is not measured: no model is downloaded, and no large one loaded; else empty."""
    checkpoint = find_local(model_name(request), request.model.revision)
    if checkpoint is None:
        return "unknown before the model is on this machine"
    if total_bytes(checkpoint.folder) > LARGE_MODEL:
        return "not estimated, as the model is large: --limit 16 measures it"
    return ""
