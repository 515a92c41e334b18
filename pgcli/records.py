"""The frozen dataclasses of a run: Item, DecodedImage, Span, Answer and its parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, Self

if TYPE_CHECKING:
    from array import array

    import numpy

Task = Literal["caption", "ask", "detect", "segment", "ocr", "embed", "score", "classify"]
Finish = Literal["stop", "length"]
#: The tasks that answer with boxes.
BOX_TASKS: tuple[Task, ...] = ("detect", "segment")
#: A part of an image: xmin, ymin, xmax, ymax in pixels of the upright image.
Region = tuple[float, float, float, float]
#: The names of the corners of a box, and of a region.
CORNERS = ("xmin", "ymin", "xmax", "ymax")
#: The largest image file that is read, local or remote.
MAX_IMAGE_BYTES = 256 * 2**20
#: The columns that `--no-timing` leaves null.
TIMING_COLUMNS = ("load_ms", "vision_ms", "prefill_ms", "decode_ms", "batch")


class Record:
    """A dataclass with slots that is pickled by their values, in a third of the time."""

    __slots__: tuple[str, ...] = ()

    def __reduce__(self) -> tuple[type[Self], tuple[Any, ...]]:
        return type(self), tuple([getattr(self, name) for name in self.__slots__])


@dataclass(frozen=True, slots=True)
class Fault:
    """The fault of an image: an error code and one sentence."""

    code: str
    message: str


OUTSIDE_FOLDER = Fault(
    "path_not_allowed",
    "The path leads outside the folder it belongs to; --allow-outside-root allows that.",
)


@dataclass(frozen=True, slots=True)
class Item(Record):
    """One input image as a source found it, not yet read.

    `image` is the row's column; `path` is the file to open (undecodable bytes as surrogates), None
    if `data` holds the bytes. With a `span`, offset and size, they are a range of the file at
    `path`. The answer is one of the `choices`, or generated if there are none. `region` is the part
    of the image that the prompts refer to. `fields` are the manifest columns that prompts may name,
    `kept` those that are copied to the output. An image with a `fault` must not be opened, and with
    a `root` (a real path) only a file that is in it.
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
    root: str | None = None
    span: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class DecodedImage(Record):
    """A decoded item: upright size, and uint8 RGB pixels (R, R, 3) at the model's resolution.

    With a `fault`, `pixels` is None, and width and height are None unless the header has them. The
    `stamp` of a file on this machine has its size, its time and a digest.
    """

    item: Item
    width: int | None
    height: int | None
    pixels: numpy.ndarray | None
    load_ms: float
    fault: Fault | None = None
    stamp: tuple[int, int, int] | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """A part of an answer: one location token, one mask token, or the text between them.

    `value` is the token's number (0..1023 for a location, 0..127 for a mask code), None for text.
    `near` is the probability of all locations near this one; None if it is not known.
    """

    kind: Literal["text", "location", "mask"]
    text: str
    value: int | None = None
    probability: float = 1.0
    near: float | None = None


@dataclass(frozen=True, slots=True)
class Box(Record):
    """A detected object, in pixels of the upright image from its top left.

    `score` is the probability of exactly these corners, `confidence` of corners near them; either
    may be None in rows of other programs.
    """

    label: str
    xmin: float
    ymin: float
    xmax: float
    ymax: float
    score: float | None = None
    confidence: float | None = None

    @property
    def corners(self) -> Region:
        return self.xmin, self.ymin, self.xmax, self.ymax

    def moved(self, corners: Region) -> Self:
        """The box with these corners."""
        xmin, ymin, xmax, ymax = corners
        return replace(self, xmin=xmin, ymin=ymin, xmax=xmax, ymax=ymax)


@dataclass(frozen=True, slots=True)
class Rle:
    """A mask of an image in COCO's compressed run-length encoding; `size` is height, width."""

    size: tuple[int, int]
    counts: str


@dataclass(frozen=True, slots=True)
class Mask:
    """The mask of a box: its 16 codes, and its pixels if a mask decoder was given."""

    codes: tuple[int, ...]
    rle: Rle | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """A candidate answer: the sum of its log-probabilities, and its softmax over the candidates."""

    text: str
    logprob: float
    probability: float


@dataclass(frozen=True, slots=True)
class TextScore:
    """How well a text describes an image.

    `score` is the sigmoid of the scaled and biased cosine, None for models that were not trained
    with it; `probability` is the softmax over the texts of the row.
    """

    text: str
    cosine: float
    score: float | None
    probability: float


@dataclass(frozen=True, slots=True)
class LabelProbability:
    """A label of an image, and its probability among all labels."""

    label: str
    probability: float


@dataclass(frozen=True, slots=True)
class Answer(Record):
    """The output row of an image and a prompt; the fields are the columns of all commands.

    `masks` has an entry for each box of `segment`, None for a box without its 16 codes; `choices`
    has an entry for each candidate; `values` are those of an answer to a JSON Schema. `embedding`
    holds float32 values, of the image or of the `text`, or the vectors of a page as text
    (`rows.has_vectors`); `scores` has an entry for each text, `labels` for the most probable ones;
    `truncated` says whether a text among these is longer than the model's input.
    """

    index: int
    id: str
    image: str
    width: int | None
    height: int | None
    task: Task
    prompt: str
    answer: str | None = None
    boxes: tuple[Box, ...] = ()
    tokens: int | None = None
    finish: Finish | None = None
    logprob: float | None = None
    load_ms: float | None = None
    vision_ms: float | None = None
    prefill_ms: float | None = None
    decode_ms: float | None = None
    batch: int | None = None
    model: str = ""
    error: str | None = None
    error_message: str | None = None
    masks: tuple[Mask | None, ...] | None = None
    choices: tuple[Choice, ...] | None = None
    values: Mapping[str, Any] | None = None
    text: str | None = None
    embedding: array[float] | str | None = None
    scores: tuple[TextScore, ...] | None = None
    labels: tuple[LabelProbability, ...] | None = None
    truncated: bool | None = None
    kept: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        """The values that are not empty."""
        shown = []
        for name in self.__slots__:
            value = getattr(self, name)
            if name == "embedding" and value is not None:
                shown.append(f"{name}=<{len(value):,} numbers>")
            elif value is not None and value not in ("", (), {}):
                shown.append(f"{name}={value!r}")
        return f"Answer({', '.join(shown)})"


#: The columns that only some answers have: of `segment`, picked among choices, or to a JSON Schema.
EXTRA_COLUMNS = ("masks", "choices", "values")
#: The columns that only rows of `embed`, `score` and `classify` have.
EMBEDDING_TASK_COLUMNS = ("text", "embedding", "scores", "labels", "truncated")
#: The columns of every answer in order, before the extra columns and the `--keep` columns.
COLUMNS = tuple(
    f.name
    for f in fields(Answer)
    if f.name not in (*EXTRA_COLUMNS, *EMBEDDING_TASK_COLUMNS, "kept")
)
_IMAGE = ("index", "id", "image", "width", "height")
_RUN = ("load_ms", "vision_ms", "model", "error", "error_message")
#: The columns of `embed`, of images and of texts, of `score` and of `classify`.
EMBED_COLUMNS = (*_IMAGE, "embedding", *_RUN)
TEXT_EMBED_COLUMNS = ("index", "id", "text", "embedding", "truncated", *_RUN[2:])
SCORE_COLUMNS = (*_IMAGE, "scores", "truncated", *_RUN)
CLASSIFY_COLUMNS = (*_IMAGE, "answer", "labels", "truncated", *_RUN)


def error_answer(image: DecodedImage, prompt: str, *, task: Task, model: str) -> Answer:
    """The row of an undecodable image: its known columns and its fault."""
    assert image.fault is not None
    error, message = image.fault.code, image.fault.message
    return unanswered(image, prompt, task=task, model=model, error=error, error_message=message)


def unanswered(
    image: DecodedImage, prompt: str, *, task: Task, model: str, **columns: Any
) -> Answer:
    """The row of an image and a prompt before it is answered, or with these columns."""
    item = image.item
    return Answer(
        index=item.index,
        id=item.id,
        image=item.image,
        width=image.width,
        height=image.height,
        task=task,
        prompt=prompt,
        load_ms=image.load_ms,
        model=model,
        kept=item.kept,
        **columns,
    )
