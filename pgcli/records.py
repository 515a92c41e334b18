"""The frozen dataclasses that travel: Item, DecodedImage, Span, Box, Mask, Choice, Answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy

Task = Literal["caption", "ask", "detect", "segment", "ocr"]
Finish = Literal["stop", "length"]
#: The tasks whose answers are boxes.
BOX_TASKS: tuple[Task, ...] = ("detect", "segment")
#: A part of a picture: xmin, ymin, xmax, ymax in pixels of the upright image.
Region = tuple[float, float, float, float]
#: The largest file of a picture that is read, wherever it lies.
MAX_IMAGE_BYTES = 256 * 2**20

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
    where `data` holds the bytes. `choices` are the candidates among which the answer is picked,
    none where it is generated; `region` is the part of the picture that the prompts are about.
    `fields` are the manifest columns that prompts may name, `kept` those that the output repeats.
    `fault` is set where the picture must not be opened at all.
    """

    index: int
    id: str
    image: str
    path: str | None = None
    data: bytes | None = None
    prompts: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    region: Region | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    kept: Mapping[str, Any] = field(default_factory=dict)
    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class DecodedImage:
    """A decoded item: upright size, and uint8 RGB pixels (R, R, 3) in the model's square.

    With a `fault`, `pixels` is None, and width and height are known only if the header gave them.
    """

    item: Item
    width: int | None
    height: int | None
    pixels: numpy.ndarray | None
    load_ms: float
    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of an answer: one location token, one mask token, or the text between them.

    `value` is the token's number (0..1023 for a location, 0..127 for a mask code), None for text.
    """

    kind: Literal["text", "location", "mask"]
    text: str
    value: int | None = None
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
class Rle:
    """A mask over a whole picture in COCO's compressed run-length encoding; size: height, width."""

    size: tuple[int, int]
    counts: str


@dataclass(frozen=True, slots=True)
class Mask:
    """What lies within a box: the 16 mask codes, and the pixels where a decoder was given."""

    codes: tuple[int, ...]
    rle: Rle | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """A candidate answer: the sum of its tokens' log-probabilities, and its share among all."""

    text: str
    logprob: float
    probability: float


@dataclass(frozen=True, slots=True)
class Answer:
    """One row of the output, one image and prompt; the fields are the contract's columns.

    `masks` has an entry for each box of `segment`, None where the box came without its 16 codes;
    `choices` an entry for each candidate of a question that has any.
    """

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
    masks: tuple[Mask | None, ...] | None = None
    choices: tuple[Choice, ...] | None = None
    kept: Mapping[str, Any] = field(default_factory=dict)


#: The columns that only some runs have: those of `segment`, and those with choices.
EXTRA_COLUMNS = ("masks", "choices")
#: The contract's columns in the order in which they are written; the extra ones follow them, and
#: then those of `--keep`.
COLUMNS = tuple(f.name for f in fields(Answer) if f.name not in (*EXTRA_COLUMNS, "kept"))


def error_answer(picture: DecodedImage, prompt: str, *, task: Task, model: str) -> Answer:
    """The row of a picture that could not be looked at: what is known of it, and its fault."""
    assert picture.fault is not None
    row = unanswered(picture, prompt, task=task, model=model)
    return replace(row, error=picture.fault.code, error_message=picture.fault.message)


def unanswered(picture: DecodedImage, prompt: str, *, task: Task, model: str) -> Answer:
    """The row of a picture and a prompt as far as it is known before it is answered."""
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
        error=None,
        error_message=None,
        kept=item.kept,
    )
