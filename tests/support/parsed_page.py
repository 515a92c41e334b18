"""A page of results as a browser parses it."""

import json
from base64 import b64decode
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image


class Parsed(HTMLParser):
    """A page as a browser parses it: tags with their attribute names, and texts."""

    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.attributes: list[dict[str, str | None]] = []
        self.texts: list[str] = []
        self.is_within = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(name for name, _ in attrs)))
        self.attributes.append(dict(attrs))
        self.texts.append("")
        self.is_within = True

    def handle_endtag(self, tag: str) -> None:
        self.is_within = False

    def handle_data(self, data: str) -> None:
        if self.is_within:
            self.texts[-1] += data

    def named(self, name: str) -> Any:
        """The JSON of the script with that name."""
        return next(
            json.loads(text)
            for text, attributes in zip(self.texts, self.attributes, strict=True)
            if attributes.get("id") == name
        )


def content(file: Path) -> Parsed:
    return Parsed(file.read_text(encoding="utf-8"))


def page_rows(data: dict[str, Any]) -> list[dict[str, Any]]:
    """The columns of each row of a page, without those that it lacks."""
    rows: list[dict[str, Any]] = [{} for _ in range(data["total"])]
    for name, values in data["columns"].items():
        for row, value in zip(rows, values, strict=True):
            row |= {} if value is None else {name: value}
    return rows


def copy(parsed: Parsed, number: int) -> Image.Image:
    entry = parsed.named(f"images-{number // 24}")[number % 24]
    return Image.open(BytesIO(b64decode(entry[0])))
