"""Untrusted text and values, safe for terminals, encoders and recursive functions."""

from __future__ import annotations

import json
import re
from itertools import chain
from typing import Any

#: Of nested values; functions here and in writers recurse once per level.
MAX_DEPTH = 64

# C0, DEL and C1 control a terminal; direction marks and line separators (U+061C, U+200E-F,
# U+2028-E, U+2066-9) can make a name look like another one; a lone surrogate cannot be encoded
_CONTROLS = r"\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
# so can characters of no width: soft hyphens, fillers, zero-width spaces, the BOM, tags
_INVISIBLE = (
    r"\u00ad\u034f\u115f\u1160\u180e\u200b\u2060-\u2065\u206a-\u206f\u3164\ufeff\uffa0"
    r"\ufff0-\ufffb\U000e0000-\U000e007f"
)
# joiners (U+200C, U+200D) belong to emoji and to scripts such as Persian, but not beside ASCII
_NO_SCRIPT = rf"\x20-\x7e{_CONTROLS}{_INVISIBLE}\u200c\u200d"
CONTROL_CHARACTERS = re.compile(
    rf"[{_CONTROLS}{_INVISIBLE}]|(?<![^{_NO_SCRIPT}])[\u200c\u200d]|[\u200c\u200d](?![^{_NO_SCRIPT}])"
)


def printable(text: str) -> str:
    r"""The text on one line, with control and invisible characters escaped, as `\x1b`.

    Everything else is unchanged, markup of any library and backslashes included.
    """
    return CONTROL_CHARACTERS.sub(
        lambda match: match[0].encode("unicode_escape").decode("ascii"), text
    )


def first_line(error: BaseException) -> str:
    """The first line of an error's message that is not blank, or the name of its class."""
    lines = (line.strip() for line in str(error).splitlines())
    return next(filter(None, lines), type(error).__name__)


def encodable(text: str) -> str:
    """The text with U+FFFD for each lone surrogate, which JSON can hold but UTF-8 cannot."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def json_object(data: bytes | None, levels: int = MAX_DEPTH) -> dict[str, Any] | None:
    """The JSON object in the data; None for anything else, and if it is nested too deeply."""
    try:
        value = json.loads(data or b"")
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    can_be_deep = data is not None and data.count(b"[") + data.count(b"{") > levels
    return None if can_be_deep and is_deep(value, levels) else value


def is_deep(value: Any, levels: int = MAX_DEPTH) -> bool:
    """Whether lists and dicts are nested in more than `levels` levels."""
    level: list[Any] = [value]
    for _ in range(levels):
        dicts = chain.from_iterable(inner.values() for inner in level if isinstance(inner, dict))
        lists = chain.from_iterable(inner for inner in level if isinstance(inner, list))
        level = [inner for inner in chain(dicts, lists) if isinstance(inner, dict | list)]
        if not level:
            return False
    return True
