"""Foreign text and values made fit for where they go: a terminal, an encoder, a function that calls
itself for each level.
"""

from __future__ import annotations

import re
from itertools import chain
from typing import Any

#: Values go through functions that call themselves for each level, here and where they are written.
MAX_DEPTH = 64

# C0, DEL and C1 steer a terminal; the direction marks and line separators (U+061C, U+200E-F,
# U+2028-E, U+2066-9) let a name show as another one; a lone surrogate cannot be encoded at all
CONTROL_CHARACTERS = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    r"""`text` on one line that leaves the terminal as it was: `\x1b` and the like are spelled out.

    Everything else, markup of any library and backslashes included, is passed as it is.
    """
    return CONTROL_CHARACTERS.sub(
        lambda found: found[0].encode("unicode_escape").decode("ascii"), text
    )


def encodable(text: str) -> str:
    """`text` with U+FFFD for each lone surrogate, which JSON can spell but no UTF-8 can carry."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def is_deep(value: Any, levels: int = MAX_DEPTH) -> bool:
    """Whether lists and dicts lie in each other over more than so many levels."""
    level: list[Any] = [value]
    for _ in range(levels):
        dicts = chain.from_iterable(one.values() for one in level if isinstance(one, dict))
        lists = chain.from_iterable(one for one in level if isinstance(one, list))
        level = [one for one in chain(dicts, lists) if isinstance(one, dict | list)]
        if not level:
            return False
    return True
