"""The plan of a run: its images, question, model and output."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pgcli.declare import options_of
from pgcli.run.checks import shard_of
from pgcli.run.rows import RunRows
from pgcli.run.task import model_name
from pgcli.tasks import Question

if TYPE_CHECKING:
    from pgcli.run.request import RunRequest


def plan_facts(request: RunRequest, rows: RunRows) -> list[tuple[str, str]]:
    """The facts of the plan that `--dry-run` and `--verbose` print."""
    per_item = rows.per_item or 1
    of_each = f", {per_item} for each image" if per_item > 1 else ""
    images = "unknown, from standard input" if rows.images is None else f"{rows.images:,}"
    facts = [("images", images)]
    if kinds := sorted(rows.inventory.kinds.items(), key=lambda kind: (-kind[1], kind[0])):
        facts.append(("kinds", ", ".join(f"{count:,} {kind}" for kind, count in kinds)))
    facts += rows.inventory.notes
    facts.append(("rows", ("unknown" if rows.total is None else f"{rows.total:,}") + of_each))
    if isinstance(request.question, Question):
        prompts = request.question.templates or ("the manifest's own",)
        facts += (("prompt", prompt) for prompt in prompts)
    named = request.model.model or f"{model_name(request)}, the built-in one"
    facts.append(("model", named))
    if request.output.output == "-":
        facts.append(("output", "standard output"))
    return [*facts, *option_facts(request)]


def option_facts(request: RunRequest) -> Iterator[tuple[str, str]]:
    """The given options by name, except those of the question that are prompts, and the model."""
    for record in (
        request.command,
        request.input,
        request.answering,
        request.model,
        request.output,
    ):
        for option in options_of(type(record)):
            value = getattr(record, option.name)
            if value == option.default or option.name in ("model", "prompt", "object", "lang"):
                continue
            if option.name == "shard":
                value = shard_of(request)
            if option.repeat:
                yield from ((option.key, str(text)) for text in value)
            elif isinstance(value, tuple):
                yield option.key, ",".join(f"{side:g}" for side in value)
            else:
                yield option.key, "yes" if value is True else str(value)
