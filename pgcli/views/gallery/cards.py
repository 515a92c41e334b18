"""Rows of result files as the plain data that the page's script reads: cards, rows, pictures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pgcli.views.colours import Colours, readable_on
from pgcli.views.gallery.outlines import outline
from pgcli.views.gallery.sanitize import Row, box, entries, line, number, text

STAGES = ("load_ms", "vision_ms", "prefill_ms", "decode_ms")
#: Columns that have a place of their own on the page; all others are shown by name.
KNOWN = frozenset(
    "index id image width height task prompt answer boxes tokens finish logprob batch model error "
    "error_message masks choices".split()
) | set(STAGES)


@dataclass(frozen=True)
class ResultFile:
    """A result file: what it is called, what its run was, and which labels were asked for.

    `pictures` is the same for files whose pictures come from the same place, so that rows of both
    about one picture share it.
    """

    name: str
    facts: Sequence[tuple[str, str]] = ()
    asked: tuple[str, ...] = ()
    note: str = ""
    pictures: Hashable = ()


@dataclass(frozen=True, slots=True)
class Wanted:
    """A picture that cards show: the row that named it first, and that row's file."""

    file: int
    index: int
    id: str
    image: str


class Cards:
    """All that the page shows but the pictures themselves, gathered a row at a time."""

    def __init__(self) -> None:
        self.wanted: list[Wanted] = []
        self.rows: list[dict[str, Any]] = []
        self._files: list[dict[str, Any]] = []
        self._asked: set[str] = set()
        self._pictures: dict[Hashable, int] = {}
        self._words: dict[str, dict[Hashable, int]] = {"prompts": {}, "labels": {}, "models": {}}

    def add(self, file: ResultFile, rows: Iterable[Row]) -> None:
        """Take in the rows of one more file."""
        place, first = len(self._files), len(self.rows)
        stages = dict.fromkeys(STAGES, 0.0)
        self._asked.update(file.asked)
        for row in rows:
            self.rows.append(self._row(row, place, file.pictures))
            for name in STAGES:
                stages[name] += number(row.get(name)) or 0.0
        own = self.rows[first:]
        self._files.append(
            {
                "name": line(file.name),
                "facts": [[line(name), line(value)] for name, value in file.facts],
                "note": line(file.note),
                "rows": len(own),
                "errors": sum("e" in row for row in own),
                "tokens": sum(row.get("t") or 0 for row in own),
                "stages": [round(stages[name], 3) for name in STAGES],
            }
        )

    def data(self) -> dict[str, Any]:
        """What the script reads."""
        colours = Colours(self._asked)
        labels = [str(label) for label in self._words["labels"]]
        return {
            "files": self._files,
            "prompts": list(self._words["prompts"]),
            "models": list(self._words["models"]),
            "labels": [[label, *_colours(colours, label)] for label in labels],
            "rows": self.rows,
            "cards": side_by_side(self.rows) if len(self._files) > 1 else None,
            "pictures": len(self.wanted),
        }

    def _row(self, row: Row, file: int, pictures: Hashable) -> dict[str, Any]:
        """The row under short names, without what it does not have."""
        width, height = number(row.get("width")), number(row.get("height"))
        sizes = [size if isinstance(size, int) and size > 0 else None for size in (width, height)]
        made: dict[str, Any] = {
            "f": file,
            "p": self._picture(row, file, pictures),
            "id": line(row.get("id")),
            "q": self._number("prompts", (line(row.get("task")), text(row.get("prompt")) or "")),
            "md": self._number("models", line(row.get("model"))),
            "w": sizes[0],
            "h": sizes[1],
            "a": text(row.get("answer")),
            "t": number(row.get("tokens")),
            "s": None if row.get("finish") is None else line(row.get("finish")),
            "lp": number(row.get("logprob")),
            "ms": [number(row.get(name)) for name in STAGES],
            "bt": number(row.get("batch")),
            "e": None if row.get("error") is None else line(row.get("error")),
            "em": text(row.get("error_message")),
            "k": [[line(name), text(row[name])] for name in row if name not in KNOWN] or None,
            **self._found(row, sizes),
            "c": [_choice(choice) for choice in entries(row.get("choices"))] or None,
        }
        if line(row.get("image")) != made["id"]:
            made["im"] = line(row.get("image"))
        return {name: value for name, value in made.items() if value is not None}

    def _found(self, row: Row, sizes: Sequence[int | None]) -> dict[str, Any]:
        """Boxes and masks, each under its number in the list of labels."""
        masks = entries(row.get("masks"))
        boxes, outlines = [], []
        for place, given in enumerate(entries(row.get("boxes"))):
            if (found := box(given)) is None:
                continue
            label, corners = found
            boxes.append([self._number("labels", label), *corners])
            outlines.append(outline(masks[place], *sizes) if place < len(masks) else None)
        return {"b": boxes or None, "m": outlines if any(outlines) else None}

    def _picture(self, row: Row, file: int, pictures: Hashable) -> int:
        index = row.get("index")
        index = index if isinstance(index, int) else -1
        image = str(row.get("image") or "")
        number = self._pictures.setdefault((pictures, index, image), len(self.wanted))
        if number == len(self.wanted):
            self.wanted.append(Wanted(file, index, str(row.get("id")), image))
        return number

    def _number(self, kind: str, word: Hashable) -> int:
        known = self._words[kind]
        return known.setdefault(word, len(known))


def side_by_side(rows: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """Rows of several files that belong together, as lists of their places, in order.

    Rows of one id go together by their prompt where another file asks it too, and else in order.
    """
    asked = Counter({(row["id"], row["q"], row["f"]): 1 for row in rows})
    files_asking = Counter((id_, prompt) for id_, prompt, _ in asked)
    unshared: Counter[Hashable] = Counter()
    repeated: Counter[Hashable] = Counter()
    cards: dict[Hashable, list[int]] = {}
    for place, row in enumerate(rows):
        key: Hashable
        if files_asking[row["id"], row["q"]] > 1:
            own = (row["id"], row["q"], row["f"])
            key = (row["id"], "asked", row["q"], repeated[own])
            repeated[own] += 1
        else:
            key = (row["id"], "place", unshared[row["id"], row["f"]])
            unshared[row["id"], row["f"]] += 1
        cards.setdefault(key, []).append(place)
    return list(cards.values())


def _colours(colours: Colours, label: str) -> tuple[str, str]:
    colour = colours.of(label)
    return _hex(colour), _hex(readable_on(colour))


def _hex(colour: Sequence[int]) -> str:
    return "#" + "".join(f"{value:02x}" for value in colour)


def _choice(value: object) -> list[Any]:
    if not isinstance(value, Mapping):
        return [line(value), None]
    return [line(value.get("text")), number(value.get("probability"))]
