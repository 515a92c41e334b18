"""The opened input of a run: its images, counted where that is possible."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

from pgcli.cli.job.demo_limit import DEMO_IMAGES, too_many_for_demo
from pgcli.cli.job.plan import Plan, check_not_an_input
from pgcli.cli.options import Options
from pgcli.errors import UsageError
from pgcli.pipeline import first_rows, sample_evenly
from pgcli.records import Item
from pgcli.remote import UrlReader
from pgcli.sources import ReadOptions, Source, open_sources
from pgcli.tasks import columns, with_prompts


@dataclass(frozen=True)
class RunInput:
    """The sources of a plan, opened. Counts are None where standard input is one of them."""

    plan: Plan
    source: Source
    url_reader: UrlReader | None = None

    @property
    def options(self) -> Options:
        """The options of the command line."""
        return self.plan.options

    @property
    def available(self) -> int | None:
        """The number of images that `--limit` chooses from: all, or those of a sample."""
        total, sample = self.source.total, self.options.input.sample
        return total if total is None or sample is None else min(total, sample)

    @property
    def images(self) -> int | None:
        """The number of images that are decoded."""
        total, limit = self.available, self.options.input.limit
        if total is None or limit is None:
            return total
        return min(total, ceil(limit / self.plan.prompts_per_image))

    @property
    def rows(self) -> int | None:
        """The number of rows of the output."""
        total, limit = self.available, self.options.input.limit
        if total is None:
            return None
        rows = total * self.plan.prompts_per_image
        rows = rows if limit is None else min(rows, limit)
        return rows if self.plan.shard is None else self.plan.shard.rows(rows)

    def items(self) -> Iterable[Item]:
        """The images with their prompts, up to the limit."""
        items: Iterable[Item] = self.source
        total, sample = self.source.total, self.options.input.sample
        if sample is not None and total is not None:
            items = sample_evenly(items, total, sample)
        items, limit = with_prompts(items, self.plan.question), self.options.input.limit
        return items if limit is None else first_rows(items, limit)


def open_input(plan: Plan) -> RunInput:
    """Open and count the sources.

    Raises NoInputError if there is no image, and UsageError where the question and the sources do
    not fit each other or there are too many images for the built-in model.
    """
    options = source_options(plan)
    source = open_sources(plan.sources, options)
    check_not_an_input(plan.options.output.output, plan.sources, globs=True)
    check_sample(plan, source)
    found = RunInput(plan, source, options.url_reader)
    if plan.uses_default_model and (found.images or 0) > DEMO_IMAGES:
        raise too_many_for_demo(f"{found.images:,} images")
    return found


def check_sample(plan: Plan, source: Source) -> None:
    """Raise UsageError for `--sample` of an input whose images cannot be counted first."""
    if plan.options.input.sample is None:
        return
    if source.total is None or plan.options.input.shard:
        raise UsageError(
            "--sample needs to know the number of images, which is unknown here",
            hint="name folders or manifests, and leave --shard out",
        )


def source_options(plan: Plan) -> ReadOptions:
    """How the sources are to be read for this plan."""
    question, options = plan.question, plan.options.input
    return ReadOptions(
        image_column=options.image_column,
        id_column=options.id_column,
        prompt_column=options.prompt_column,
        keep=options.keep,
        fields=columns(question),
        requires_prompts=question.templates is None,
        refuses_prompts=question.refuses_prompts,
        choices_column=question.choices_column,
        refuses_regions=question.region is not None,
        null_separated=options.nul,
        allow_outside_root=options.allow_outside_root,
        url_reader=options.url_reader,
    )
