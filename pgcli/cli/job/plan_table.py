"""The plan of a run as the table that `--verbose` and `--dry-run` print."""

from __future__ import annotations

from collections.abc import Mapping

from pgcli.cli.job.input import RunInput
from pgcli.cli.ui.console import Facts
from pgcli.sources.input_hints import describe_endings


def plan_table(input: RunInput) -> Facts:
    """Names and values of the plan."""
    plan = input.plan
    options = plan.options
    rows = format_count(input.rows, "as many as lines come")
    if plan.prompts_per_image > 1:
        rows += f", {plan.prompts_per_image} for each image"
    names = options.input.names
    optional = [
        ("adapter", options.model.adapter),
        ("quantized", None if options.model.quantize == "none" else options.model.quantize),
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
        *plan.task.facts(),
        ("model", options.model.model or f"{plan.model}, the built-in one"),
        *((name, value) for name, value in optional if value),
    ]


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
