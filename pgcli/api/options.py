"""The options of the methods that answer with text."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import TypedDict

from pgcli.errors import UsageError
from pgcli.records import Region


class CallOptions(TypedDict, total=False):
    """Keyword arguments of `caption`, `ask`, `detect`, `segment` and `ocr`.

    region: xmin, ymin, xmax, ymax in pixels of the upright image, for models trained to answer
        about a part of an image.
    max_new_tokens: The longest answer; by default that of the task.
    temperature: 0 takes the most likely token each time; above 0, tokens are sampled.
    top_p, top_k: Sample among the most likely tokens only.
    seed: Equal seeds sample equal answers, whatever the batch size.
    alternatives: Also sample so many answers, at `temperature` or else at 1, for
        `Answer.alternatives`; the answer itself stays the most likely one.
    token_logprobs: Fill `Answer.token_logprobs`.
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
    alternatives: int
    token_logprobs: bool
    batch_size: int | None
    workers: int | None
    progress: bool


@dataclass(frozen=True, slots=True)
class CallSettings:
    """The options of one call, checked, with their defaults. Raises UsageError."""

    region: Region | None = None
    max_new_tokens: int | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    alternatives: int = 0
    token_logprobs: bool = False
    batch_size: int | None = None
    workers: int | None = None
    progress: bool = False

    def __post_init__(self) -> None:
        checks = {
            "max_new_tokens": (_is_whole(self.max_new_tokens or 1), "a whole number, or None"),
            "temperature": (self.temperature >= 0, "0 or more"),
            "top_p": (0 < self.top_p <= 1, "above 0 and at most 1"),
            "top_k": (_is_whole(self.top_k), "a whole number of 0 (all tokens) or more"),
            "seed": (self.seed >= 0, "0 or more"),
            "alternatives": (_is_whole(self.alternatives), "a whole number of 0 or more"),
            "batch_size": (
                self.batch_size is None or _is_whole(self.batch_size, least=1),
                "a whole number of 1 or more, or None",
            ),
        }
        for name, (is_valid, expected) in checks.items():
            if not is_valid:
                raise UsageError(f"{name} is {getattr(self, name)}", hint=f"{name} is {expected}")


def _is_whole(number: float, least: int = 0) -> bool:
    return isinstance(number, Integral) and number >= least
