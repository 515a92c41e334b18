"""Converts rows of result files to the data that the page's script reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pgcli.results.drawings.colours import LabelColours, contrasting
from pgcli.results.gallery.outlines import mask_outline
from pgcli.results.gallery.sanitize import (
    Row,
    as_list,
    clean_box,
    clean_line,
    clean_number,
    clean_text,
)
from pgcli.results.images import ImageRef
from pgcli.rows import answer_digest

STAGES = ("load_ms", "vision_ms", "prefill_ms", "decode_ms")
#: Columns that the page shows in a specific way; all others are shown as name and value.
KNOWN = frozenset(
    "index id image width height task prompt answer boxes tokens finish logprob batch model error "
    "error_message masks choices text embedding scores labels".split()
) | set(STAGES)


@dataclass(frozen=True)
class ResultFile:
    """A result file: its name, the settings of its run, and the labels of its prompts.

    `source` is equal for files whose images have the same source, so that their rows share images.
    `absolute` returns the absolute path or the address of an image; None where it is not known.
    `output` has the images in its input, or, of rows of a search, what `output_of` returns.
    """

    name: str
    settings: Sequence[tuple[str, str]] = ()
    labels: tuple[str, ...] = ()
    note: str = ""
    source: Hashable = ()
    absolute: Callable[[str], str | None] = lambda image: None
    output: Path = Path()
    output_of: Callable[[Row], Path] | None = None


@dataclass(frozen=True, slots=True)
class ImageFile:
    """An image file by its absolute path, and which of the rows with that path it is."""

    path: str
    place: int


class Cards:
    """The page's data except the images, collected row by row."""

    def __init__(self) -> None:
        self.images: list[ImageRef] = []
        self.rows: list[dict[str, Any]] = []
        self._files: list[dict[str, Any]] = []
        self._image_files: list[ImageFile | None] = []  # of each row
        self._distinct_labels: set[str] = set()
        self._image_numbers: dict[Hashable, int] = {}
        self._tables: dict[str, dict[Hashable, int]] = {"prompts": {}, "labels": {}, "models": {}}

    def add(self, file: ResultFile, rows: Iterable[Row]) -> None:
        """Add the rows of a file."""
        number, first = len(self._files), len(self.rows)
        stages = dict.fromkeys(STAGES, 0.0)
        self._distinct_labels.update(file.labels)
        places: dict[str, dict[Any, int]] = {}  # of each path, by the indexes that have it
        for row in rows:
            image_file, output, source = None, file.output, file.source
            if file.output_of is None:
                image_file = find_image_file(row, file, places)
            else:
                source = output = file.output_of(row)
            self._image_files.append(image_file)
            image = self._image_number(ImageRef.of(row, output), image_file or source)
            self.rows.append(self._row(row, number, image))
            for name in STAGES:
                stages[name] += clean_number(row.get(name)) or 0.0
        own = self.rows[first:]
        self._files.append(
            {
                "name": clean_line(file.name),
                "settings": [
                    [clean_line(name), clean_line(value)] for name, value in file.settings
                ],
                "note": clean_line(file.note),
                "rows": len(own),
                "errors": sum("e" in row for row in own),
                "tokens": sum(row.get("t") or 0 for row in own),
                "stages": [round(stages[name], 3) for name in STAGES],
            }
        )

    def data(self) -> dict[str, Any]:
        """The JSON that the script reads."""
        colours = LabelColours(self._distinct_labels)
        labels = [str(label) for label in self._tables["labels"]]
        return {
            "files": self._files,
            "prompts": list(self._tables["prompts"]),
            "models": list(self._tables["models"]),
            "labels": [[label, *_colours(colours, label)] for label in labels],
            "rows": self.rows,
            "cards": self._cards() if len(self._files) > 1 else None,
            "images": len(self.images),
        }

    def _cards(self) -> list[list[int]]:
        files = [row["f"] for row in self.rows]
        return group_cards(self.rows, identities(self.rows, self._image_files, files))

    def _row(self, row: Row, file: int, image: int) -> dict[str, Any]:
        """The row with short keys, without those that have no value."""
        width, height = clean_number(row.get("width")), clean_number(row.get("height"))
        sizes = [size if isinstance(size, int) and size > 0 else None for size in (width, height)]
        prompt = (clean_line(row.get("task")), clean_text(row.get("prompt")) or "")
        others = [[clean_line(name), clean_text(row[name])] for name in row if name not in KNOWN]
        short: dict[str, Any] = {
            "f": file,
            "p": image,
            "id": clean_line(row.get("id")),
            "q": self._table_index("prompts", prompt),
            "md": self._table_index("models", clean_line(row.get("model"))),
            "w": sizes[0],
            "h": sizes[1],
            "a": clean_text(row.get("answer")) or _embedding(row),
            "t": clean_number(row.get("tokens")),
            "s": None if row.get("finish") is None else clean_line(row.get("finish")),
            "lp": clean_number(row.get("logprob")),
            "ms": [clean_number(row.get(name)) for name in STAGES],
            "bt": clean_number(row.get("batch")),
            "e": None if row.get("error") is None else clean_line(row.get("error")),
            "em": clean_text(row.get("error_message")),
            "k": others or None,
            **self._boxes_and_masks(row, sizes),
            "c": [_choice(choice) for choice in as_list(row.get("choices"))] or None,
            "d": _shares(row) or None,
        }
        if is_reviewable(row):
            is_whole = len(short["b"] or ()) == len(as_list(row.get("boxes")))
            short |= {"x": row["index"], "g": answer_digest(row), "u": None if is_whole else 1}
        if clean_line(row.get("image")) != short["id"]:
            short["im"] = clean_line(row.get("image"))
        return {key: value for key, value in short.items() if value is not None}

    def _boxes_and_masks(self, row: Row, sizes: Sequence[int | None]) -> dict[str, Any]:
        """Boxes with the index of their label, and outlines of their masks."""
        masks = as_list(row.get("masks"))
        boxes, outlines = [], []
        for number, value in enumerate(as_list(row.get("boxes"))):
            if (cleaned := clean_box(value)) is None:
                continue
            label, corners = cleaned
            boxes.append([self._table_index("labels", label), *corners])
            outlines.append(mask_outline(masks[number], *sizes) if number < len(masks) else None)
        return {"b": boxes or None, "m": outlines if any(outlines) else None}

    def _image_number(self, ref: ImageRef, source: Hashable) -> int:
        key = source if isinstance(source, ImageFile) else (source, ref.index, ref.image)
        number = self._image_numbers.setdefault(key, len(self.images))
        if number == len(self.images):
            self.images.append(ref)
        return number

    def _table_index(self, name: str, value: Hashable) -> int:
        table = self._tables[name]
        return table.setdefault(value, len(table))


def is_reviewable(row: Row) -> bool:
    """Whether an edit can name the row, and it has an answer."""
    index = row.get("index")
    is_number = isinstance(index, int) and 0 <= index < 2**53
    return is_number and row.get("answer") is not None and row.get("error") is None


def find_image_file(
    row: Row, file: ResultFile, places: dict[str, dict[Any, int]]
) -> ImageFile | None:
    """The image file of a row; None where its path is not known.

    `places` are those of the rows before it: a path that a manifest repeats is several images.
    """
    path = file.absolute(str(row.get("image") or ""))
    if path is None:
        return None
    indexes = places.setdefault(path, {})
    return ImageFile(path, indexes.setdefault(row.get("index"), len(indexes)))


def identities(
    rows: Sequence[Mapping[str, Any]], image_files: Sequence[ImageFile | None], files: Sequence[int]
) -> list[Hashable]:
    """What the rows of an image have in common: its path where several files have it, else its id.

    A row whose path is not known has that of its id, if there is one.
    """
    files_with = Counter(image_file for image_file, _ in {*zip(image_files, files, strict=True)})
    shared = [image_file if files_with[image_file] > 1 else None for image_file in image_files]
    by_id: dict[str, set[ImageFile]] = {}
    for row, image_file in zip(rows, shared, strict=True):
        if image_file is not None:
            by_id.setdefault(row["id"], set()).add(image_file)
    found: list[Hashable] = []
    for row, known, image_file in zip(rows, image_files, shared, strict=True):
        alike = by_id.get(row["id"], set()) if known is None else set()
        found.append(image_file or (next(iter(alike)) if len(alike) == 1 else row["id"]))
    return found


def group_cards(
    rows: Sequence[Mapping[str, Any]], images: Sequence[Hashable] | None = None
) -> list[list[int]]:
    """Indices of the rows of several files that share a card, in order.

    Rows of the same image, by default those with equal ids, are matched by prompt if another file
    has the prompt too, else by order.
    """
    images = [row["id"] for row in rows] if images is None else images
    named = list(zip(images, rows, strict=True))
    files_with = Counter({(image, row["q"], row["f"]): 1 for image, row in named})
    num_files = Counter((image, prompt) for image, prompt, _ in files_with)
    unmatched: Counter[Hashable] = Counter()
    repeated: Counter[Hashable] = Counter()
    cards: dict[Hashable, list[int]] = {}
    for index, (image, row) in enumerate(named):
        key: Hashable
        if num_files[image, row["q"]] > 1:
            own = (image, row["q"], row["f"])
            key = (image, "prompt", row["q"], repeated[own])
            repeated[own] += 1
        else:
            key = (image, "order", unmatched[image, row["f"]])
            unmatched[image, row["f"]] += 1
        cards.setdefault(key, []).append(index)
    return list(cards.values())


def _colours(colours: LabelColours, label: str) -> tuple[str, str]:
    colour = colours.of(label)
    return _hex(colour), _hex(contrasting(colour))


def _hex(colour: Sequence[int]) -> str:
    return "#" + "".join(f"{value:02x}" for value in colour)


def _choice(value: object) -> list[Any]:
    if not isinstance(value, Mapping):
        return [clean_line(value), None]
    return [clean_line(value.get("text")), clean_number(value.get("probability"))]


def _shares(row: Row) -> list[list[Any]]:
    """The texts of `score` and the labels of `classify`: each with a share and a number in words.

    The share is the probability; of a single text it is the score, or else the cosine.
    """
    scores, labels = as_list(row.get("scores")), as_list(row.get("labels"))
    name = "text" if scores else "label"
    shares = []
    for one in scores or labels:
        if not isinstance(one, Mapping):
            continue
        share = clean_number(one.get("probability"))
        cosine, score = clean_number(one.get("cosine")), clean_number(one.get("score"))
        if len(scores) == 1:
            share = cosine if score is None else score
        words = f"{share or 0:.1%}" if cosine is None or len(scores) > 1 else f"{cosine:.3f}"
        detail = "" if cosine is None else f"cosine {cosine:.3f}"
        detail += "" if score is None else f", score {score:.3g}"
        shares.append([clean_line(one.get(name)), share or 0, words, detail])
    return shares


def _embedding(row: Row) -> str | None:
    """What a page shows of an embedding: how many values it has."""
    values = row.get("embedding")
    return f"embedding of {len(values):,} values" if isinstance(values, list) else None
