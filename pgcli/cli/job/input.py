"""The opened input of a run: its images, counted where that is possible."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from pathlib import Path

from pgcli.cli.job.demo_limit import DEMO_IMAGES, demo_limit_error
from pgcli.cli.job.plan import Plan, check_not_an_input, claiming_option
from pgcli.cli.options import JobOptions, values
from pgcli.cli.ui.console import Screen
from pgcli.errors import UsageError
from pgcli.pipeline import EvenSample, Selection, first_rows, sample_evenly
from pgcli.records import Item
from pgcli.remote import UrlReader
from pgcli.rows import RowSchema
from pgcli.sources.open_sources import check_columns, open_sources
from pgcli.sources.read_options import ReadOptions, ReadScan, no_scan
from pgcli.sources.source import Source
from pgcli.sources.texts import TextPart
from pgcli.state.input_lists import scan_reader
from pgcli.state.stored_input_lists import stored_scan_reader
from pgcli.tasks import (
    AnyQuestion,
    EmbeddingQuestion,
    rows_per_image,
    template_columns,
    with_prompts,
)


@dataclass
class RunInput:
    """The sources of a plan, opened. Counts are None where standard input is one of them.

    `chunk_rows` is the number of rows in a chunk of the output, once the output is opened.
    `kept_texts` is the number of images that are not asked, as their text is kept.
    """

    plan: Plan
    source: Source
    url_reader: UrlReader | None = None
    chunk_rows: int | None = None
    kept_texts: int = 0

    @property
    def options(self) -> JobOptions:
        """The options of the command line."""
        return self.plan.options

    @property
    def row_schema(self) -> RowSchema:
        """The columns of the rows. Raises UsageError for a kept column of a name that is taken."""
        return RowSchema(
            timing=not self.options.output.no_timing,
            extras=self.plan.question.extra_columns,
            base=self.plan.question.columns,
            float16=self.plan.question.float16,
            keep=self.source.kept,
        )

    @property
    def available(self) -> int | None:
        """The number of images that `--limit` chooses from: all, or those of a sample."""
        total, sample = self.source.total, self.options.input.sample
        if total is None or sample is None:
            return total
        return min(self.source.population(sample) or 0, sample)

    @property
    def images(self) -> int | None:
        """The number of images that are decoded."""
        total, limit = self.available, self.options.input.limit
        if total is None or limit is None:
            return total
        return min(total, ceil(limit / self.plan.prompts_per_image))

    @property
    def rows(self) -> int | None:
        """The number of rows of the output, or of its part that this process computes."""
        rows, shard = self.rows_of_all_shards, self.plan.shard
        if rows is None or shard is None:
            return rows
        return shard.rows(rows, self.chunk_rows or self.plan.chunk_rows(rows))

    @property
    def rows_of_all_shards(self) -> int | None:
        """The number of rows of the whole output."""
        total, limit = self.available, self.options.input.limit
        if total is None:
            return None
        rows = total * self.plan.prompts_per_image
        return rows if limit is None else min(rows, limit)

    @property
    def has_known_rows(self) -> bool:
        """Whether the rows of any part of the input are known without reading what is before it."""
        return self.source.total is not None and rows_per_image(self.plan.question) is not None

    def items(self, is_unchanged: Callable[[int], bool] = lambda row: False) -> Iterable[Item]:
        """The images with their prompts, up to the limit; of a shard only those of its rows.

        Image bytes in a table or an archive are not read where `is_unchanged` holds for their rows.
        """
        limit, rows = self.options.input.limit, self.rows_of_all_shards
        if rows is None or not self.has_known_rows:
            items = with_prompts(self._sampled(), self.plan.question)
            return items if limit is None else first_rows(items, limit)
        shard, parts = self.plan.shard, iter([range(rows)])
        if shard is not None:
            parts = shard.ranges(rows, self.chunk_rows or self.plan.chunk_rows(rows))
        return self.items_of(parts, is_unchanged)

    def items_of(
        self,
        parts: Iterable[range],
        is_unchanged: Callable[[int], bool] = lambda row: False,
    ) -> Iterator[Item]:
        """The images of these parts of the rows, which are known, with all of their prompts."""
        question, count = self.plan.question, self.options.input.sample
        total = self.source.total if count is None else self.source.population(count)
        per_image, rows = rows_per_image(question), self.rows_of_all_shards
        assert total is not None
        assert per_image is not None
        assert rows is not None
        sample = EvenSample(total, total if count is None else count)
        return Selection(sample, per_image, rows).items(
            self.source.rows, partial(with_prompts, question=question), parts, is_unchanged
        )

    def _sampled(self) -> Iterable[Item]:
        sample = self.options.input.sample
        total = None if sample is None else self.source.population(sample)
        if sample is None or total is None:
            return self.source
        return sample_evenly(self.source, total, sample)


def open_input(plan: Plan, screen: Screen) -> RunInput:
    """Open and count the sources, with the progress of counting shown.

    Raises NoInputError if there is no image, and UsageError where the question and the sources do
    not fit each other or there are too many images for the built-in model.
    """
    options = source_options(plan)
    with screen.progress("counting", unit=unit_of(plan)) as progress:
        source = open_items(plan.sources, plan.question, replace(options, track=progress.track))
    check_not_an_input(plan.options.output.output, plan.sources, globs=True)
    check_sample(plan, source)
    found = RunInput(plan, source, options.url_reader)
    if plan.uses_default_model and (found.images or 0) > DEMO_IMAGES:
        raise demo_limit_error(f"{found.images:,} {unit_of(plan)}", plan.task)
    return found


def open_items(sources: Sequence[str], question: AnyQuestion, options: ReadOptions) -> Source:
    """The items that the question is about: the images of the sources, or texts.

    Of each row of a manifest, what the question needs is read as well. Raises what `open_sources`
    raises, and UsageError for a file of texts that cannot be read.
    """
    options = replace(
        options,
        prompt_column=question.text_column or options.prompt_column,
        prompt_noun="prompt" if question.text_column is None else "text",
        fields=template_columns(question),
        requires_prompts=question.templates is None,
        refuses_prompts=question.refuses_prompts,
        choices_column=question.choices_column,
    )
    if not isinstance(question, EmbeddingQuestion) or not question.embeds_texts:
        return open_sources(sources, options)
    texts = list(question.texts)
    if question.texts_file is not None:
        texts += values.lines(question.texts_file, noun="text")
    part = TextPart(texts)
    check_columns(part, options)
    if options.names.include or options.names.exclude:
        raise UsageError(
            "--include and --exclude choose images by their names, and these are texts",
            hint="leave them out",
        )
    return Source([part])


def unit_of(plan: Plan) -> str:
    """What the items are."""
    return "texts" if plan.question.embeds_texts else "images"


def check_sample(plan: Plan, source: Source) -> None:
    """Raise UsageError for `--sample` of an input whose images cannot be counted first."""
    if plan.options.input.sample is None:
        return
    if source.total is None:
        raise UsageError(
            "--sample needs to know the number of images, which is unknown here",
            hint="name folders or manifests",
        )


def source_options(plan: Plan) -> ReadOptions:
    """How the sources are to be read for this plan."""
    options = plan.options.input
    return ReadOptions(
        image_column=options.image_column,
        id_column=options.id_column,
        prompt_column=options.prompt_column,
        keep=options.keep,
        refuses_regions=plan.question.region is not None,
        null_separated=options.null,
        names=options.names,
        allow_outside_root=options.allow_outside_root,
        url_reader=options.url_reader,
        read_scan=stored_scans(plan),
    )


def stored_scans(plan: Plan) -> ReadScan:
    """What reads the scans of tables that earlier processes of the run stored beside its output."""
    output = plan.options.output
    if output.overwrite or output.output == "-":
        return no_scan
    return stored_scan_reader(output.output) if plan.is_stored else scan_reader(Path(output.output))


def check_known_rows(input: RunInput) -> None:
    """Raise UsageError for an input of which no part can be read alone."""
    option = claiming_option(input.plan)
    if not input.has_known_rows:
        raise UsageError(
            f"{option} needs an input whose rows are known before it is read",
            hint="name folders or manifests in place of standard input, and one prompt where "
            "prompts name columns",
        )
