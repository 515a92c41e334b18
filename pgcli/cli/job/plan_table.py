"""The plan of a run as the table that `--verbose` and `--dry-run` print."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict

from pgcli.checkpoints.find import DEMO
from pgcli.cli.job.input import RunInput
from pgcli.cli.ui.console import Facts
from pgcli.sources.input_hints import describe_endings
from pgcli.tasks import Question


def plan_table(input: RunInput) -> Facts:
    """Names and values of the plan."""
    plan = input.plan
    options = plan.options
    rows = format_count(input.rows, "as many as lines come")
    if plan.prompts_per_image > 1:
        rows += f", {plan.prompts_per_image} for each image"
    prompts = plan.question.templates or ("the manifest's own",)
    names = options.input.names
    optional = [
        ("adapter", options.model.adapter),
        ("quantized", None if options.model.quantize == "none" else options.model.quantize),
        ("mask decoder", plan.mask_decoder),
        ("output", "standard output" if options.output.output == "-" else options.output.output),
        ("drawn in", options.output.draw),
        ("sidecars", options.output.sidecar),
    ]
    return [
        ("images", format_count(input.images, "as many as come on standard input")),
        *kind_facts(input.source.kinds),
        *ignored_facts(input.source.ignored),
        *(("include", pattern) for pattern in names.include),
        *(("exclude", pattern) for pattern in names.exclude),
        ("rows", rows),
        *(("prompt", prompt) for prompt in prompts),
        *question_facts(plan.question),
        ("model", options.model.model or f"{DEMO}, the built-in one"),
        *((name, value) for name, value in optional if value),
    ]


def question_facts(question: Question) -> Iterator[tuple[str, str]]:
    """What a question has besides its prompts."""
    if question.choices:
        yield "choices", ", ".join(question.choices)
    if question.choices_column is not None:
        yield "choices", f"the manifest's {question.choices_column!r}"
    if question.strict:
        yield "answers", "whole boxes around these objects only"
    if question.box_filter:
        limits = asdict(question.box_filter).items()
        given = [f"{name.replace('_', '-')} {x:g}" for name, x in limits if x is not None]
        yield "boxes", ", ".join(given)
    if question.region is not None:
        yield "region", ",".join(f"{side:g}" for side in question.region)


def ignored_facts(ignored: Mapping[str, int]) -> Facts:
    """The files that are skipped because of their endings, most frequent ending first."""
    return [("skipped", ", ".join(describe_endings(ignored)))] if ignored else []


def kind_facts(kinds: Mapping[str, int]) -> Facts:
    """The number of images by file ending, most frequent ending first."""
    by_count = sorted(kinds.items(), key=lambda kind: (-kind[1], kind[0]))
    return [("kinds", ", ".join(f"{count:,} {kind}" for kind, count in by_count))] if kinds else []


def format_count(count: int | None, unknown: str) -> str:
    """The count with thousands separators, or the words for an unknown one."""
    return unknown if count is None else f"{count:,}"
