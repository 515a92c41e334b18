"""The options of the methods that answer with text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypedDict, cast

from pgcli.declare import build, option_named, parse_value
from pgcli.pipeline.request.options import AnsweringOptions, InputOptions, ModelOptions
from pgcli.records import Region


class CallOptions(TypedDict, total=False):
    """Keyword arguments of `caption`, `ask`, `detect`, `segment` and `ocr`.

    region: xmin, ymin, xmax, ymax in pixels of the upright image, for models trained to answer
        about a part of an image.
    max_new_tokens: The longest answer; by default that of the task.
    temperature: 0 takes the most likely token each time; above 0, tokens are sampled.
    top_p, top_k: Sample among the most likely tokens only.
    seed: Equal seeds sample equal answers, whatever the batch size.
    batch_size: The most rows in one batch; by default that of the engine.
    workers: Processes that decode images.
    progress: Show a bar on stderr.
    """

    region: Region | None
    max_new_tokens: int | None
    temperature: float
    top_p: float
    top_k: int
    seed: int
    batch_size: int | None
    workers: int | None
    progress: bool


@dataclass(frozen=True, slots=True)
class Call:
    """The options of one call, checked as the command line's are."""

    answering: AnsweringOptions
    batch_size: int | None = None
    workers: int | None = None
    progress: bool = False


def call_of(options: CallOptions) -> Call:
    """The options of a call. Raises UsageError, and TypeError for an unknown one."""
    values: dict[str, Any] = {}
    for name, value in cast(dict[str, Any], options).items():
        if name not in CallOptions.__annotations__:
            raise TypeError(f"there is no option {name!r}")
        if value is not None and name != "progress":
            value = parse_value(
                option_named(RECORD_OF.get(name, AnsweringOptions), name), value, name
            )
        values[name] = value
    set_values = {name: value for name, value in values.items() if value is not None}
    own = {name: values[name] for name in (*RECORD_OF, "progress") if name in values}
    return Call(build(AnsweringOptions, set_values), **own)


def check_batch_size(batch_size: int | None) -> None:
    """Raise UsageError for what is not a number of rows."""
    call_of({"batch_size": batch_size})


#: The records of options that are not of answers.
RECORD_OF: dict[str, type] = {"batch_size": ModelOptions, "workers": InputOptions}
