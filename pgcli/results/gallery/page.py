"""Assembles the gallery page: markup, style, script, and the rows as inert JSON."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Iterator
from hashlib import sha256
from html import escape
from importlib.resources import files
from itertools import islice
from pathlib import Path
from string import Template
from typing import Any

from pgcli.printable import encodable, printable
from pgcli.results.gallery.thumbnails import ThumbnailEntry
from pgcli.stores.files import open_regular
from pgcli.stores.target import Target

#: The script's files, in the order in which they are concatenated.
SCRIPTS = (
    "data",
    "marks",
    "filters",
    "matrix",
    "review",
    "grid",
    "zoom",
    "drawing",
    "runs",
    "evaluation",
    "start",
)
#: What the first bytes of a page contain.
PAGE_MARK, PAGE_HEAD = b'<meta name="generator" content="pgcli">', 2000
CHUNK_SIZE = 24  # images in one JSON element, so that a screen needs few of them


def render_page(
    data: dict[str, Any], images: Iterable[ThumbnailEntry], *, title: str
) -> Iterator[str]:
    """The page in pieces, the images last, so that a browser shows the cards while it loads them.

    No foreign value is markup: rows and images are JSON in which no tag can begin. The content
    security policy allows this script alone, by its digest, and no requests.
    """
    style, script = asset("page.css"), _script()
    head = Template(asset("page.html")).substitute(
        policy=escape(policy(style, script, has_assets=data.get("assets") is not None)),
        title=escape(printable(encodable(title))),
        style=style,
        data=inert(data | {"chunkSize": CHUNK_SIZE}),
        script=script,
    )
    yield head
    for number, chunk in enumerate(chunks(images)):
        yield f'<script type="application/json" id="images-{number}">{inert(chunk)}</script>\n'
    yield "</body>\n</html>\n"


def page_target(
    name: str | Path,
    option: str = "-o",
    *,
    inputs: Iterable[str | Path] = (),
    overwrite: bool = False,
) -> Target:
    """The page that an option names, which replaces another page; `inputs` stay as they are."""
    return Target(
        name=str(name),
        option=option,
        overwrite=overwrite,
        is_ours=is_page,
        inputs=[*map(str, inputs)],
    )


def is_page(file: Path) -> bool:
    """Whether the file is a page of results, which another one may replace."""
    try:
        with open_regular(file) as opened:
            return PAGE_MARK in opened.read(PAGE_HEAD)
    except OSError:
        return False


def chunks(images: Iterable[ThumbnailEntry]) -> Iterator[list[ThumbnailEntry]]:
    """The images in lists of CHUNK_SIZE."""
    remaining = iter(images)
    while chunk := list(islice(remaining, CHUNK_SIZE)):
        yield chunk


def policy(style: str, script: str, *, has_assets: bool) -> str:
    """The content security policy: this style, this script, and images in the page.

    With an assets folder, images may also be files of the page's origin.
    """
    images = "data: 'self' file:" if has_assets else "data:"
    return "; ".join(
        (
            "default-src 'none'",
            f"img-src {images}",
            f"style-src {_digest(style)}",
            f"script-src {_digest(script)}",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def inert(value: object) -> str:
    """JSON for a script element, escaped so that it cannot contain a tag or a comment."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def asset(name: str) -> str:
    """A file of the page's folder in the package."""
    return files("pgcli.results.gallery").joinpath("page", name).read_text(encoding="utf-8")


def _script() -> str:
    parts = "\n".join(asset(f"{name}.js") for name in SCRIPTS)
    return f'"use strict";\n(() => {{\n{parts}\n}})();\n'


def _digest(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
