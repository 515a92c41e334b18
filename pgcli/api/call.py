"""One call from Python; it shares options and their parsing with the commands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pgcli.declare import build, parse_keywords, same
from pgcli.run.request.make import with_lines
from pgcli.run.request.options import AnsweringOptions, InputOptions, ModelOptions
from pgcli.run.request.questions import COMMAND_OPTIONS, WITHOUT_ANSWERS, SegmentOptions
from pgcli.tasks import AnyQuestion, Question, with_region

#: The options of `load`; of a call, these and the other forms of files do not apply.
LOADING = (
    *("model", "revision", "adapter", "device", "dtype", "quantize", "batch_size", "mask_decoder"),
    *("fast_decode", "allow_urls", "allow_private_hosts"),
)
NOT_OF_CALLS = ("mask_decoder", "dtype_out", "texts_file")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How a call uses the engine."""

    batch_size: int | None = same(ModelOptions, "batch_size")
    workers: int | None = same(InputOptions, "workers")


@dataclass(frozen=True, slots=True)
class Call:
    """A question, and how it is answered."""

    question: AnyQuestion
    answering: AnsweringOptions
    engine: EngineOptions
    progress: bool = False


def make_call(task: str, options: Mapping[str, object], *, of_texts: bool = False) -> Call:
    """The call of a task with these keywords; None leaves an option out. Raises UsageError."""
    keywords = {**options}
    progress = bool(keywords.pop("progress", False))
    records = [COMMAND_OPTIONS[task], EngineOptions]
    if task not in WITHOUT_ANSWERS:
        records.append(AnsweringOptions)
    values = with_lines(parse_keywords(records, keywords, without=NOT_OF_CALLS))
    answering = build(AnsweringOptions, values)
    question = build(COMMAND_OPTIONS[task], values).question(answering, () if of_texts else ("-",))
    if isinstance(question, Question):
        question = with_region(question, answering.region)
    return Call(question, answering, build(EngineOptions, values), progress)


def parse_loading(options: Mapping[str, object]) -> dict[str, Any]:
    """The values of keywords of `load`; None leaves an option out. Raises UsageError."""
    return parse_keywords((ModelOptions, InputOptions, SegmentOptions), options, only=LOADING)
