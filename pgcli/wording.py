"""Counts, sizes, durations and lists of names in messages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

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
