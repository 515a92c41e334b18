"""The folder that the datasets library reads as an imagefolder: pictures and metadata.jsonl."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pgcli.rows import json_text
from pgcli.views.exports.entry import Entry, Format, Wanted, unhidden
from pgcli.views.exports.image_files import placed

#: What `datasets` takes in a name for that of a split, a shard, what is left out, or an archive.
SPLIT = re.compile(
    r"(?:^|(?<=[-._ 0-9]))"
    r"(?:train|training|validation|valid|dev|val|test|testing|eval|evaluation)(?=[-._ 0-9]|$)"
    r"|-[0-9]{5}-of(?=-[0-9]{5})|^_(?=_)|:(?=:)"
)


def write(target: Path, entries: Iterable[Entry], wanted: Wanted) -> None:
    """Fill the folder. A picture that cannot be read is left out."""
    with open(target / "metadata.jsonl", "w", encoding="utf-8") as file:
        for entry in entries:
            if not placed(target, entry, wanted):
                continue
            file.write(json_text(line(entry, wanted)) + "\n")
            wanted.tally.pictures += 1


def line(entry: Entry, wanted: Wanted) -> dict[str, Any]:
    """What is known of a picture: its text, or where there are boxes to be, those.

    `categories` are places in the list of all labels, `labels` their names.
    """
    made: dict[str, Any] = {"file_name": entry.name}
    if texts := entry.texts:
        made["text"] = texts[0]
    if wanted.labels or len(texts) < len(entry.rows):
        found = list(entry.found())
        wanted.tally.boxes += len(found)
        made["objects"] = {
            "bbox": [[float(number) for number in one[1:5]] for one in found],
            "categories": [wanted.labels[one.label] for one in found],
            "labels": [one.label for one in found],
            "scores": [one.score for one in found],
        }
    return made


def tidied(part: str, is_folder: bool) -> str:
    """The name with a `~` behind what would be read as something else: of folders and files whose
    names have such words, `datasets` makes splits, and loses what is known of them.
    """
    return SPLIT.sub(r"\g<0>~", unhidden(part, is_folder))


IMAGEFOLDER = Format(
    write,
    is_folder=True,
    one_of="texts",
    opens=True,
    endings=frozenset({".jsonl"}),
    tidied=tidied,
    takes=frozenset({"labels", "pictures"}),
)
