"""Texts in messages and files: untrusted text, counts and lists, marks of other programs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
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


# --- messages

MAX_NAMES = 5  # that a message lists
MAX_SHOWN = 60  # characters of a value


def shown(value: object, limit: int = MAX_SHOWN) -> str:
    """The value as a message shows it, at most `limit` characters: a text as it is, else JSON."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def count(number: int, noun: str) -> str:
    """`1 row`, `2,000 rows`, `3 boxes`."""
    ending = "" if number == 1 else "es" if noun.endswith(("s", "x")) else "s"
    return f"{number:,} {noun}{ending}"


def one_of(words: Sequence[str]) -> str:
    """`suffix, answers or answer`."""
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def listed(
    names: Sequence[object],
    limit: int = MAX_NAMES,
    *,
    total: int | None = None,
    separator: str = ",",
) -> str:
    """`a, b and 3 more`: the first names, and how many more there are of the `total`.

    Names are quoted if one is blank or has a comma. With `separator=";"`, which is for texts:
    `a; b; and 3 more`.
    """
    shown = [str(name) for name in names[:limit]]
    if separator == "," and any("," in name or not name.strip() for name in shown):
        shown = [repr(name) for name in shown]
    remaining = (len(names) if total is None else total) - len(shown)
    more = f"{separator.strip(',')} and {remaining:,} more" if remaining > 0 else ""
    return f"{separator} ".join(shown) + more


def with_notes(text: str, notes: Iterable[tuple[int, str]]) -> str:
    """`12 rows; 3 rejected; 1 box skipped`: the text and every note with a count above 0.

    A note that begins with a plural is given with the singular for one.
    """
    return "; ".join([text, *(note(number, what) for number, what in notes if number)])


def note(number: int, what: str) -> str:
    """`1 box skipped`, `2 boxes skipped`."""
    noun, _, details = what.partition(" ")
    if number == 1:
        noun = noun.removesuffix("es" if noun.endswith("xes") else "s")
    return f"{number:,} {noun} {details}".rstrip()


def duration(seconds: float) -> str:
    """`7 ms`, `0.42 s`, `12.3 s`, `4 min 5 s`, `3 h 2 min`."""
    if seconds < 0.01:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 60:
        return f"{seconds:.{2 if seconds < 10 else 1}f} s"
    minutes, remainder = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {remainder} s"
    return f"{minutes // 60} h {minutes % 60} min"


def byte_count(number: int) -> str:
    """`1 byte`, `512 bytes`, `1.2 kB`, `34.5 MB`."""
    if number < 1000:
        return count(number, "byte")
    power = min((len(str(number)) - 1) // 3, 4)
    return f"{number / 1000**power:,.1f} {'?kMGT'[power]}B"


# --- files of other programs

BYTE_ORDER_MARK = "\ufeff"
#: At the start of a line, also behind the first: files are concatenated with theirs.
_MARKS = re.compile("^\ufeff+", re.MULTILINE)
#: How every pointer file begins (https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md).
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
#: The number of bytes that `is_lfs_pointer` needs from the start of a file.
LFS_HEAD_BYTES = len(_LFS_POINTER)
LFS_MESSAGE = "is a Git LFS pointer, not the file itself"
LFS_HINT = "run `git lfs pull` in its repository to download the file"


def decode_text(data: bytes) -> str:
    """UTF-8 text without byte order marks. Raises UnicodeDecodeError."""
    return without_marks(data.decode())


def without_marks(text: str) -> str:
    """The text without byte order marks at the start of its lines."""
    return _MARKS.sub("", text) if BYTE_ORDER_MARK in text else text


def is_lfs_pointer(head: bytes) -> bool:
    """Whether a file that begins with `head` is a Git LFS pointer."""
    return head.startswith(_LFS_POINTER)


def number_reason(problem: Exception) -> str:
    """Why a text is not valid; Python's own words about a long integer name a function of it."""
    is_long = "set_int_max_str_digits" in str(problem)
    return "it has a number of too many digits" if is_long else str(problem)
