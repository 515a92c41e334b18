"""The plan of a run: its images, question, model and output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgcli.run.checks import shard_of
from pgcli.run.rows import RunRows
from pgcli.run.task import model_name, question_facts

if TYPE_CHECKING:
    from pgcli.run.request import RunRequest


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
