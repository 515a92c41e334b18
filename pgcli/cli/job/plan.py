"""What a run is going to do: checked as far as it can be before a model is loaded."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from pgcli.checkpoints.config import read_config
from pgcli.checkpoints.find import DEMO, FETCH_DECODER, folder_of
from pgcli.cli.options import ModelOptions, Options
from pgcli.errors import ModelUnavailable, UsageError
from pgcli.pipeline import first_rows, sample_evenly
from pgcli.records import Item
from pgcli.remote import UrlReader
from pgcli.sources import ReadOptions, Source, ending_counts, open_sources
from pgcli.sources.patterns import expand_source
from pgcli.state.shard import Shard, parse_shard
from pgcli.tasks import Question, check_max_new_tokens, columns, with_prompts

#: `demo` takes no more pictures than this unless it was named: it is there to be tried.
DEMO_PICTURES = 100
REAL_MODEL = "a real one: --model google/paligemma-3b-mix-224"


@dataclass(frozen=True)
class Plan:
    """A question, the pictures it is asked about, and how the user wants that done."""

    question: Question
    names: tuple[str, ...]
    source: Source
    options: Options
    mask_decoder: str | None = None
    url_reader: UrlReader | None = None

    @property
    def prompts(self) -> int:
        """How many prompts each picture has; where a manifest brings them, one."""
        return 1 if self.question.templates is None else len(self.question.templates)

    @property
    def pictures(self) -> int | None:
        """How many pictures will be looked at; None where standard input has to end first."""
        total, limit = self.chosen, self.options.input.limit
        if total is None or limit is None:
            return total
        return min(total, ceil(limit / self.prompts))

    @property
    def chosen(self) -> int | None:
        """How many pictures there are to choose from: all, or those of a sample."""
        total, sample = self.source.total, self.options.input.sample
        return total if total is None or sample is None else min(total, sample)

    @property
    def rows(self) -> int | None:
        """How many rows there will be; None where standard input has to end first."""
        total, limit = self.chosen, self.options.input.limit
        if total is None:
            return None
        rows = total * self.prompts if limit is None else min(total * self.prompts, limit)
        return rows if self.shard is None else self.shard.rows(rows)

    @property
    def shard(self) -> Shard | None:
        """The part of the rows that is this process's."""
        named = self.options.input.shard
        return None if named is None else parse_shard(named, os.environ)

    @property
    def takes_demo_unasked(self) -> bool:
        """Whether the built-in model answers because no model was named."""
        return self.options.model.model is None

    def items(self) -> Iterable[Item]:
        """The pictures with their prompts, no more than the limit allows."""
        found: Iterable[Item] = self.source
        total, sample = self.source.total, self.options.input.sample
        if sample is not None and total is not None:
            found = sample_evenly(found, total, sample)
        items, limit = with_prompts(found, self.question), self.options.input.limit
        return items if limit is None else first_rows(items, limit)

    def facts(self) -> list[tuple[str, str]]:
        """The plan for a person to read."""
        rows = counted(self.rows, "as many as lines come")
        if self.prompts > 1:
            rows += f", {self.prompts} for each picture"
        return [
            ("pictures", counted(self.pictures, "as many as come on standard input")),
            *told_of_kinds(self.source.kinds),
            *left_out(self.source.ignored),
            ("rows", rows),
            *(("prompt", prompt) for prompt in self.question.templates or ("the manifest's own",)),
            *told_of(self.question),
            ("model", self.options.model.model or f"{DEMO}, the built-in one"),
            *(("adapter", name) for name in (self.options.model.adapter,) if name),
            *(("quantized", kind) for kind in (self.options.model.quantize,) if kind != "none"),
            *(("mask decoder", file) for file in (self.mask_decoder,) if file),
            ("output", described(self.options.output.output)),
            *(("drawn in", folder) for folder in (self.options.output.draw,) if folder),
            *(("sidecars", ending) for ending in (self.options.output.sidecar,) if ending),
        ]


def make_plan(
    names: Sequence[str], question: Question, options: Options, *, mask_decoder: str | None = None
) -> Plan:
    """The plan for these sources, opened and counted.

    Raises NoInputError where there is no picture, UsageError where the question and the sources
    do not fit each other, or the built-in model is not up to so many, and what is wrong with the
    model as far as it is on this machine and shows at once.
    """
    insist_on_a_place()
    wanted = reading(question, options)
    source = open_sources(names, wanted)
    spare_the_input(names, options.output.output)
    check_model(question, options.model, mask_decoder)
    if options.input.sample is not None and (source.total is None or options.input.shard):
        raise UsageError(
            "--sample chooses among all pictures, whose number nobody knows here",
            hint="name folders or manifests, and leave --shard out",
        )
    plan = Plan(question, tuple(names), source, options, mask_decoder, wanted.url_reader)
    if plan.takes_demo_unasked and (plan.pictures or 0) > DEMO_PICTURES:
        raise too_many_for_demo(f"{plan.pictures:,} pictures")
    return plan


def insist_on_a_place() -> None:
    """Raise UsageError where the folder that the program was started in is gone."""
    try:
        os.getcwd()  # noqa: PTH109 - Path would look the same way
    except OSError as problem:
        raise UsageError(
            f"the current folder cannot be read: {problem.strerror}", hint="cd into one that exists"
        ) from problem


def check_model(question: Question, chosen: ModelOptions, mask_decoder: str | None) -> None:
    """Raise for a model, an adapter or a decoder that cannot serve; the Hub is not asked."""
    folder = folder_of(chosen.model or DEMO)
    if folder is not None:
        check_max_new_tokens(question, read_config(folder).max_answer_tokens)
    if chosen.adapter is not None:
        folder_of(chosen.adapter, "adapter")
    if mask_decoder is not None and "://" in mask_decoder:
        raise UsageError(
            f"{mask_decoder} is an address", hint=f"download it first: {FETCH_DECODER}"
        )
    if mask_decoder is not None and not Path(mask_decoder).is_file():
        raise ModelUnavailable(
            f"there is no file {mask_decoder}", hint=f"fetch it: {FETCH_DECODER}"
        )


def told_of(question: Question) -> list[tuple[str, str]]:
    """What a question says beside its prompts."""
    told = []
    if question.choices:
        told.append(("choices", ", ".join(question.choices)))
    if question.choices_column is not None:
        told.append(("choices", f"the manifest's {question.choices_column!r}"))
    if question.strict:
        told.append(("answers", "whole boxes around these objects only"))
    if question.region is not None:
        told.append(("region", ",".join(f"{side:g}" for side in question.region)))
    return told


def reading(question: Question, options: Options) -> ReadOptions:
    """How manifests are to be read for this question."""
    chosen = options.input
    return ReadOptions(
        image_column=chosen.image_column,
        id_column=chosen.id_column,
        prompt_column=chosen.prompt_column,
        keep=chosen.keep,
        fields=columns(question),
        requires_prompts=question.templates is None,
        refuses_prompts=question.refuses_prompts,
        choices_column=question.choices_column,
        refuses_regions=question.region is not None,
        null_separated=chosen.nul,
        allow_outside_root=chosen.allow_outside_root,
        url_reader=chosen.url_reader,
    )


def spare_the_input(names: Sequence[str], output: str) -> None:
    """Refuse an output that is one of the inputs, by whatever name: it would be lost."""
    if output == "-" or not os.path.exists(output):  # noqa: PTH110 - Path raises for a long name
        return
    for name in names:
        for path in expand_source(name):
            if Path(path).exists() and Path(path).samefile(output):
                raise UsageError(
                    f"{output} is an input and would be overwritten", hint="choose another -o"
                )


def too_many_for_demo(pictures: str) -> UsageError:
    """The refusal to have the built-in model answer for many pictures because none was named."""
    return UsageError(
        f"{pictures} for {DEMO}, the built-in model, which knows only drawings of shapes",
        hint=f"name {REAL_MODEL}; or write --model {DEMO} if you mean it",
    )


@dataclass
class DemoLimit:
    """At most DEMO_PICTURES of the items; `exceeded` says, afterwards, whether there were more."""

    items: Iterable[Item]
    exceeded: bool = False

    def __iter__(self) -> Iterator[Item]:
        for count, item in enumerate(self.items, start=1):
            if count > DEMO_PICTURES:
                self.exceeded = True
                return
            yield item


def left_out(ignored: Mapping[str, int]) -> list[tuple[str, str]]:
    """The files left out for their endings, most first."""
    return [("left out", ", ".join(ending_counts(ignored)))] if ignored else []


def told_of_kinds(kinds: Mapping[str, int]) -> list[tuple[str, str]]:
    """The pictures by what they are stored as, most first."""
    by_count = sorted(kinds.items(), key=lambda kind: (-kind[1], kind[0]))
    return [("kinds", ", ".join(f"{count:,} {kind}" for kind, count in by_count))] if kinds else []


def counted(number: int | None, unknown: str) -> str:
    return unknown if number is None else f"{number:,}"


def described(output: str) -> str:
    return "standard output" if output == "-" else output
