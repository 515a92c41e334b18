"""Assembles a page: markup, style, script, and the data as inert JSON."""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from pgcli.stores.files import open_regular
from pgcli.stores.writing import Target
from pgcli.text import encodable, printable


def clean_text(value: object) -> str | None:
    """The value as text with its line breaks, with control characters escaped."""
    if value is None:
        return None
    if not isinstance(value, str):
        value = json.dumps(value, ensure_ascii=False, default=str)
    if is_clean(value):
        return value
    lines = encodable(value).replace("\r\n", "\n").replace("\t", " ").split("\n")
    return "\n".join(map(printable, lines))


def clean(value: Any) -> Any:
    """A value of a row with its texts and numbers cleaned, at any depth."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return clean_number(value)
    if not isinstance(value, Mapping | list | tuple):
        return clean_text(value)
    if is_clean_value(value):
        return value
    if isinstance(value, Mapping):
        return {clean_line(name): clean(inner) for name, inner in value.items()}
    return [clean(inner) for inner in value]


def clean_line(value: object) -> str:
    """The value as one line with control characters escaped; None is empty."""
    text = "" if value is None else str(value)
    return text if is_clean(text) else printable(encodable(text))


def is_clean(text: str) -> bool:
    """Whether the text needs no cleaning: true for most, and fast."""
    return text.isascii() and text.isprintable()


def is_clean_value(value: object) -> bool:
    """Whether a list or an object needs no cleaning at any depth: true for most, and fast."""
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):  # a value that JSON does not have
        return False
    return "\\" not in text and "\x7f" not in text


def clean_number(value: object, digits: int = 6) -> float | int | None:
    """A finite number rounded to significant digits; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, int):
        return value if abs(value) < 2**53 else None
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def as_list(value: object) -> Sequence[Any]:
    """The value if it is a list, else an empty one."""
    return value if isinstance(value, list | tuple) else ()


#: What the first bytes of a page contain.
PAGE_MARK, PAGE_HEAD = b'<meta name="generator" content="pgcli">', 2000


def render_page(
    package: str,
    scripts: Sequence[str],
    data: Mapping[str, Any],
    *,
    title: str,
    parts: Iterable[tuple[str, str]] = (),
) -> Iterator[str]:
    """The page in pieces, from the body, style and `scripts` in the folder `page` of a package.

    Its parts, JSON by names, come last, so that a browser shows the page while it loads them. No
    foreign value is markup: all are JSON in which no tag can begin. The content security policy
    allows this script alone, by its digest, and no requests.
    """
    style = asset("shell.css") + asset("page.css", package)
    code = "\n".join([asset("shell.js"), *(asset(f"{name}.js", package) for name in scripts)])
    script = f'"use strict";\n(() => {{\n{code}\n}})();\n'
    policy = (
        "default-src 'none'",
        "img-src data:",
        f"style-src {digest(style)}",
        f"script-src {digest(script)}",
        "base-uri 'none'",
        "form-action 'none'",
    )
    yield Template(asset("shell.html")).substitute(
        policy=escape("; ".join(policy)),
        title=escape(clean_line(title)),
        style=style,
        body=asset("page.html", package),
        data=inert(json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))),
        script=script,
    )
    for name, text in parts:
        yield f'<script type="application/json" id="{name}">{inert(text)}</script>\n'
    yield "</body>\n</html>\n"


def page_target(
    name: str | Path,
    option: str = "-o",
    *,
    inputs: Iterable[str | Path] = (),
    overwrite: bool = False,
) -> Target:
    """The target of an option that names a page; an existing page is replaced, an input never."""
    return Target(
        name=str(name),
        option=option,
        overwrite=overwrite,
        is_ours=is_page,
        inputs=[*map(str, inputs)],
    )


def is_page(file: Path) -> bool:
    """Whether the file is a page of pgcli."""
    try:
        with open_regular(file) as opened:
            return PAGE_MARK in opened.read(PAGE_HEAD)
    except OSError:
        return False


def inert(text: str) -> str:
    """JSON escaped so that it cannot contain a tag or a comment in a script element."""
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def asset(name: str, package: str = "pgcli.results") -> str:
    """A file of the shell of all pages, or of the folder `page` of a package."""
    return files(package).joinpath("page", name).read_text(encoding="utf-8")


def digest(text: str) -> str:
    """The SHA-256 digest of a text as a content security policy writes it."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
