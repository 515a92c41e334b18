"""The frozen dataclasses that travel: Item, Picture, Piece, Box, Answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy

Task = Literal["caption", "ask", "detect", "ocr"]
Finish = Literal["stop", "length"]
#: A part of a picture: xmin, ymin, xmax, ymax in pixels of the upright image.
Region = tuple[int, int, int, int]

#: The columns that `--no-timing` leaves null.
TIMING_COLUMNS = ("load_ms", "vision_ms", "prefill_ms", "decode_ms", "batch")


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with one picture: a code of the contract and one sentence."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Item:
    """One input picture as a source found it, not yet read.

    `image` is what the row shows; `path` is what is opened (undecodable bytes as surrogates), None
    where `data` holds the bytes. `fields` are the manifest columns that prompts may name, `kept`
    those that the output repeats. `fault` is set where the picture must not be opened at all.
    """

    index: int
    id: str
    image: str
    path: str | None = None
    data: bytes | None = None
    prompts: tuple[str, ...] = ()
    fields: Mapping[str, Any] = field(default_factory=dict)
    kept: Mapping[str, Any] = field(default_factory=dict)
    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class Picture:
    """A decoded item: upright size, and uint8 RGB pixels (R, R, 3) in the model's square.

    `region` (xmin, ymin, xmax, ymax) is the part that the square shows, None for all of it. With a
    `fault`, `pixels` is None, and width and height are known only if the header gave them.
    """

    item: Item
    width: int | None
    height: int | None
    pixels: numpy.ndarray | None
    load_ms: float
    fault: Fault | None = None
    region: Region | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of an answer: one location token, one mask token, or the text between them.

    `place` is the token's number (0..1023 for a location, 0..127 for a mask code), None for text.
    """

    kind: Literal["text", "location", "mask"]
    text: str
    place: int | None = None
    probability: float = 1.0


@dataclass(frozen=True, slots=True)
class Box:
    """A found object, in pixels of the upright image, corners from the top left."""

    label: str
    xmin: float
    ymin: float
    xmax: float
    ymax: float
    score: float


@dataclass(frozen=True, slots=True)
class Answer:
    """One row of the output, one image and prompt; the fields are the contract's columns."""

    index: int
    id: str
    image: str
    width: int | None
    height: int | None
    task: Task
    prompt: str
    answer: str | None
    boxes: tuple[Box, ...]
    tokens: int | None
    finish: Finish | None
    logprob: float | None
    load_ms: float | None
    vision_ms: float | None
    prefill_ms: float | None
    decode_ms: float | None
    batch: int | None
    model: str
    error: str | None
    error_message: str | None
    kept: Mapping[str, Any] = field(default_factory=dict)


#: The contract's columns in the order in which they are written; columns of `--keep` follow them.
COLUMNS = tuple(f.name for f in fields(Answer) if f.name != "kept")


def error_answer(picture: Picture, prompt: str, *, task: Task, model: str) -> Answer:
    """The row of a picture that could not be looked at: what is known of it, and its fault."""
    assert picture.fault is not None
    item = picture.item
    return Answer(
        index=item.index,
        id=item.id,
        image=item.image,
        width=picture.width,
        height=picture.height,
        task=task,
        prompt=prompt,
        answer=None,
        boxes=(),
        tokens=None,
        finish=None,
        logprob=None,
        load_ms=picture.load_ms,
        vision_ms=None,
        prefill_ms=None,
        decode_ms=None,
        batch=None,
        model=model,
        error=picture.fault.code,
        error_message=picture.fault.message,
        kept=item.kept,
    )
