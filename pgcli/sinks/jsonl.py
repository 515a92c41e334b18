"""A row as one line of JSON."""

from __future__ import annotations

from pgcli.records import Answer
from pgcli.sinks.rows import Layout, json_text


def json_line(answer: Answer, layout: Layout, *, ascii_only: bool = False) -> str:
    """The row as compact JSON and a newline.

    `ascii_only` is for a terminal: JSON itself leaves DEL, C1 controls and direction marks raw.
    """
    return json_text(layout.row(answer), ascii_only=ascii_only) + "\n"
