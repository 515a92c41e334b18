"""Values that replace each value of a JSON document."""

import json
from collections.abc import Iterator
from typing import Any

#: `to_text` writes them as nested lists, which the json module could not write.
DEEP = {f"deep {levels}": "[" * levels + "]" * levels for levels in (100, 900, 5000)}
HOSTILE: list[Any] = [None, True, 5, -1, 0, 10**400, -(10**400), 2**63, 1e308, -1e308]
HOSTILE += [
    float("nan"),
    float("inf"),
    "",
    "x",
    "-",
    "\0",
    "../x",
    "/dev/null",
    "\ud800",
    "x" * 999,
]
HOSTILE += [[], {}, [5], ["x"], [None], {"a": 1}, {"a": {"b": [1]}}, [[]], [{}], *DEEP]


def to_text(value: Any) -> str:
    text = json.dumps(value)
    for name, deep in DEEP.items():
        text = text.replace(f'"{name}"', deep)
    return text


def paths(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to all inner values."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in pairs:
        yield (*above, key)
        if isinstance(inner, dict | list):
            yield from paths(inner, (*above, key))


def replace_at(value: Any, path: tuple[Any, ...], new: Any) -> None:
    for key in path[:-1]:
        value = value[key]
    value[path[-1]] = new
