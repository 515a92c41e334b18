"""The own options of each command, and the question that they make."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol

from pgcli import tasks
from pgcli.answer_schema import read_schema
from pgcli.boxes import BoxFilter
from pgcli.declare import REQUIRED, opt, same
from pgcli.errors import UsageError
from pgcli.run.options import AnsweringOptions
from pgcli.stores.files import read_text
from pgcli.tasks import AnyQuestion

_answering = partial(opt, panel="What to ask")
_texts = partial(_answering, metavar="TEXT", repeat=True)
_raw_text = partial(
    _answering,
    "Keep upper case and punctuation even if the model was trained without them.",
    default=False,
)
_share = partial(opt, panel="Boxes", min=0.0, max=1.0)


def schema_option(value: object) -> str:
    """The name of a file, or a schema itself: as JSON, or as a dict of Python."""
    if isinstance(value, Mapping):
        return json.dumps(value)
    if value == "":
        raise ValueError("must not be empty")
    if not isinstance(value, str | os.PathLike):
        raise ValueError(f"must be the name of a file or a schema, not {value!r}")
    return os.fsdecode(value)


class CommandOptions(Protocol):
    """The options of one command."""

    def question(
        self, answering: AnsweringOptions, sources: Sequence[str], *, instructed: bool
    ) -> AnyQuestion:
        """The question, `instructed` if it is to a model that follows instructions.

        Raises UsageError for options that make none.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptionOptions:
    """The options of `caption`."""

    lang: str = _answering("Language of the captions.", default="en", metavar="TAG")

    def question(
        self, answering: AnsweringOptions, sources: Sequence[str], *, instructed: bool
    ) -> AnyQuestion:
        limit = answering.max_new_tokens
        return tasks.caption(self.lang, max_new_tokens=limit, instructed=instructed)


@dataclass(frozen=True, slots=True, kw_only=True)
class AskOptions:
    """The options of `ask`."""

    prompt: tuple[str, ...] = _texts(
        "Question to ask; repeatable. {column} is replaced by the value in the manifest's row."
    )
    prompts_file: str | None = _answering(
        "Text file with one prompt per line, asked after --prompt.", metavar="FILE"
    )
    choice: tuple[str, ...] = _texts(
        "Candidate answer; pass two or more, and the model picks the most likely one."
    )
    choices_column: str | None = _answering(
        "Manifest column with the candidates of each row: a list, or a text such as yes|no.",
        metavar="NAME",
    )
    schema: str | None = _answering(
        "JSON Schema that answers fit; their values are the column values.",
        metavar="FILE",
        parse=schema_option,
    )

    def question(
        self, answering: AnsweringOptions, sources: Sequence[str], *, instructed: bool
    ) -> AnyQuestion:
        if any(not text.strip() for text in self.prompt):
            raise UsageError("the prompt is empty", hint='write <--prompt "what is this?">')
        return tasks.ask(
            self.prompt or None,
            choices=self.choice,
            choices_column=self.choices_column,
            schema=self.schema,
            max_new_tokens=answering.max_new_tokens,
            instructed=instructed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfidenceOptions:
    """The filter for boxes in rows."""

    min_confidence: float | None = _share("Drop boxes with a confidence below this.")


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxOptions(ConfidenceOptions):
    """The filter for boxes in pages and exports."""

    nms: float | None = _share(
        "If boxes with the same label overlap by more than this IoU, keep the most confident one.",
        metavar="IOU",
    )

    @property
    def box_filter(self) -> BoxFilter:
        """The boxes to keep."""
        return BoxFilter(self.min_confidence, self.nms)


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectOptions(ConfidenceOptions):
    """The options of `detect`."""

    object: tuple[str, ...] = _texts("Object to find; repeatable.", default=REQUIRED)
    strict: bool = _answering("Allow only complete boxes with these labels.", default=False)
    each: bool = _answering(
        "Use a separate prompt and row for each object; small models then find more.",
        default=False,
    )

    def question(self, answering: AnsweringOptions, *_: Any, **__: Any) -> AnyQuestion:
        return tasks.detect(
            self.object,
            strict=self.strict,
            each=self.each,
            box_filter=BoxFilter(self.min_confidence),
            max_new_tokens=answering.max_new_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentOptions(ConfidenceOptions):
    """The options of `segment`."""

    object: tuple[str, ...] = same(DetectOptions, "object")
    mask_decoder: str | None = opt(
        "File with the weights that turn mask codes into pixels, such as big_vision's vae-"
        "oid.npz; by default the model's own mask_decoder.safetensors, if it has one.",
        panel="Which model",
        metavar="FILE",
    )

    def question(self, answering: AnsweringOptions, *_: Any, **__: Any) -> AnyQuestion:
        most = answering.max_new_tokens
        boxes = BoxFilter(self.min_confidence)
        return tasks.segment(self.object, box_filter=boxes, max_new_tokens=most)


@dataclass(frozen=True, slots=True, kw_only=True)
class OcrOptions:
    """The options of `ocr`: none."""

    def question(
        self, answering: AnsweringOptions, sources: Sequence[str], *, instructed: bool
    ) -> AnyQuestion:
        return tasks.ocr(max_new_tokens=answering.max_new_tokens, instructed=instructed)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedOptions:
    """The options of `embed`."""

    text: tuple[str, ...] = _texts("Text to embed instead of images; repeatable.")
    texts_file: str | None = _answering(
        "Text file with one text per line, embedded after --text.", metavar="FILE"
    )
    raw_text: bool = _raw_text()
    dtype_out: Literal["float32", "float16"] = opt(
        "Type of the embedding values.", panel="Where to", default="float32"
    )
    pool: int | None = opt(
        "Merge about so many similar vectors of a page into one (ColPali).",
        panel="Where to",
        min=2,
        max=64,
    )

    def question(
        self, answering: AnsweringOptions, sources: Sequence[str], **_: Any
    ) -> AnyQuestion:
        if bool(sources) == bool(self.text or self.texts_file):
            what = "both" if sources else "neither"
            raise UsageError(
                f"embed needs either images or texts, and got {what}",
                hint='name a folder of images, or write <--text "a red car">',
            )
        return tasks.embed(
            self.text,
            texts_file=self.texts_file,
            float16=self.dtype_out == "float16",
            raw_text=self.raw_text,
            pool=self.pool,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreOptions:
    """The options of `score`."""

    text: tuple[str, ...] = _texts("Text to compare with the images; repeatable.")
    text_column: str | None = _answering("Manifest column with the texts.", metavar="NAME")
    raw_text: bool = _raw_text()

    def question(self, answering: AnsweringOptions, *_: Any, **__: Any) -> AnyQuestion:
        return tasks.score(self.text, text_column=self.text_column, raw_text=self.raw_text)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifyOptions:
    """The options of `classify`."""

    label: tuple[str, ...] = _texts(
        "Label to choose from; repeatable. A classifier keeps only these of its labels."
    )
    label_file: str | None = _answering(
        "Text file with one label per line, added to --label.", metavar="FILE"
    )
    template: tuple[str, ...] = _texts(
        "Text around a label, with {label} in it; repeatable. A label's embedding is the "
        "mean of its texts.",
        default_text='"a photo of a {label}"',
    )
    top: int = _answering("Largest number of labels per row, best first.", default=5, min=1)
    raw_text: bool = _raw_text()

    def question(self, answering: AnsweringOptions, *_: Any, **__: Any) -> AnyQuestion:
        return tasks.classify(
            self.label, templates=self.template, top=self.top, raw_text=self.raw_text
        )


#: The options of each command; embed, score and classify have no AnsweringOptions.
COMMAND_OPTIONS: Mapping[str, type[Any]] = {
    "caption": CaptionOptions,
    "ask": AskOptions,
    "detect": DetectOptions,
    "segment": SegmentOptions,
    "ocr": OcrOptions,
    "embed": EmbedOptions,
    "score": ScoreOptions,
    "classify": ClassifyOptions,
}
WITHOUT_ANSWERS = ("embed", "score", "classify")
#: Options that name a text file, and the option that its lines are values of.
LINES_OF = {"prompts_file": "prompt", "label_file": "label"}


def schema_of_file(value: str) -> str:
    """The schema in a file, or in this JSON text. Raises UsageError."""
    if value.lstrip().startswith("{"):
        return read_schema(value)
    return read_schema(_text_of(value, hint="name a file with a JSON Schema"))


def lines_of_file(file: str | None, *, noun: str) -> list[str]:
    """The lines of a text file that are not blank; none without a file. Raises UsageError."""
    if file is None:
        return []
    text = _text_of(file, hint=f"name a text file with a {noun} on each line")
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    if not lines:
        raise UsageError(f"{file} has no {noun}s", hint="write one on each line")
    return lines


def _text_of(file: str, *, hint: str) -> str:
    try:
        return read_text(file)
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or "it is not UTF-8"
        raise UsageError(f"{file} cannot be read: {reason}", hint=hint) from problem
