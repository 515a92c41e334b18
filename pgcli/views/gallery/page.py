"""The page itself: markup, style and script as one file, and the rows in it as inert data."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Iterator
from hashlib import sha256
from html import escape
from importlib.resources import files
from itertools import islice
from string import Template
from typing import Any

from pgcli.printable import encodable, printable
from pgcli.views.gallery.thumbnails import Entry

#: The script's files, in the order in which they are read as one.
SCRIPTS = ("data", "marks", "filters", "grid", "zoom", "runs", "start")
TOGETHER = 24  # pictures in one piece of data: what a screen shows is found in a few of them


def page(data: dict[str, Any], pictures: Iterable[Entry], *, title: str) -> Iterator[str]:
    """The page, piece by piece: all but the pictures first, so that it shows before they are read.

    Nothing from outside is markup in it: rows and pictures are JSON in which no tag can begin, and
    the browser is told to run this script alone, by its digest, and to fetch nothing.
    """
    style, script = part("page.css"), _script()
    head = Template(part("page.html")).substitute(
        policy=escape(policy(style, script, beside=data.get("beside") is not None)),
        title=escape(printable(encodable(title))),
        style=style,
        data=inert(data | {"together": TOGETHER}),
        script=script,
    )
    yield head
    for number, entries in enumerate(together(pictures)):
        yield f'<script type="application/json" id="pictures-{number}">{inert(entries)}</script>\n'
    yield "</body>\n</html>\n"


def together(pictures: Iterable[Entry]) -> Iterator[list[Entry]]:
    """The pictures, so many at a time as one piece of data has."""
    left = iter(pictures)
    while entries := list(islice(left, TOGETHER)):
        yield entries


def policy(style: str, script: str, *, beside: bool) -> str:
    """What the browser is to allow: this style, this script, and pictures in the page.

    Copies `beside` the page are files for a page that is one; the script asks for no other.
    """
    pictures = "data: 'self' file:" if beside else "data:"
    return "; ".join(
        (
            "default-src 'none'",
            f"img-src {pictures}",
            f"style-src {_digest(style)}",
            f"script-src {_digest(script)}",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def inert(value: object) -> str:
    """JSON that can stand in a script tag: no tag begins or ends within it, and no comment."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def part(name: str) -> str:
    """A file of the page, as it lies in the package."""
    return files("pgcli.views.gallery").joinpath("page", name).read_text(encoding="utf-8")


def _script() -> str:
    parts = "\n".join(part(f"{name}.js") for name in SCRIPTS)
    return f'"use strict";\n(() => {{\n{parts}\n}})();\n'


def _digest(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


__all__ = ["SCRIPTS", "inert", "page", "part", "policy"]
