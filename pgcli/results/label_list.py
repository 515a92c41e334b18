"""Reads labels that a command names: in a list, or in a file with a label on each line."""

from __future__ import annotations

from pathlib import Path

from pgcli.errors import UsageError
from pgcli.results.imports.json_values import label
from pgcli.stores.files import read_text


def read_labels(text: str) -> list[str]:
    """The labels of `a,b`, or of the file of this name, in their order.

    Raises UsageError for one that is empty, there twice, or not a label.
    """
    try:
        if Path(text).is_file():
            names = [line for line in read_text(text).splitlines() if line.strip()]
        else:
            names = text.split(",")
        labels = [label(name, repr(name)) for name in names]
    except (OSError, ValueError) as problem:
        raise UsageError(
            f"--labels {text}: {problem}",
            hint="--labels cat,dog or a text file in UTF-8 with a label on each line",
        ) from problem
    if len(set(labels)) < len(labels):
        raise UsageError(f"--labels {text} has a label twice", hint="remove one of the two")
    return labels
