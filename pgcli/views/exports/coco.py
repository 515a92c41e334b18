"""COCO's JSON: images, annotations with boxes, masks and scores, and categories."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pgcli.rows import json_text
from pgcli.views.exports.entry import Entry, Format, Found, Wanted


def write(target: Path, entries: Iterable[Entry], wanted: Wanted) -> None:
    """Write the file; pictures are named as the rows name them."""
    document(target, ((entry, entry.image) for entry in entries), wanted)


def document(target: Path, named: Iterable[tuple[Entry, str]], wanted: Wanted) -> None:
    """Write entries, each with its file's name. Holds one of them at a time.

    Annotations wait in a file of their own, as COCO has all images first.
    """
    with (
        open(target, "w", encoding="utf-8") as file,
        tempfile.TemporaryFile("w+", encoding="utf-8", dir=target.parent) as waiting,
    ):
        file.write('{"info":{"description":"made by pgcli"},"images":[')
        for entry, name in named:
            file.write(",\n" if wanted.tally.pictures else "\n")
            image = {"id": entry.number, "file_name": name}
            file.write(json_text(image | {"width": entry.width, "height": entry.height}))
            wanted.tally.pictures += 1
            for found in entry.found():
                waiting.write(",\n" if wanted.tally.boxes else "\n")
                wanted.tally.boxes += 1
                waiting.write(json_text(annotation(found, entry, wanted)))
        file.write('\n],"annotations":[')
        waiting.seek(0)
        shutil.copyfileobj(waiting, file)
        categories = [{"id": place + 1, "name": label} for label, place in wanted.labels.items()]
        file.write(f'\n],"categories":{json_text(categories)}}}\n')


def annotation(found: Found, entry: Entry, wanted: Wanted) -> dict[str, Any]:
    """A box as COCO has it; with a mask, the area is the mask's."""
    made: dict[str, Any] = {
        "id": wanted.tally.boxes,
        "image_id": entry.number,
        "category_id": wanted.labels[found.label] + 1,  # 0 is what is no object
        "bbox": [found.left, found.top, found.width, found.height],
        "area": round(found.width * found.height, 2),
        "iscrowd": 0,
        "score": found.score,
    }
    if found.rle is not None:
        from pgcli.records import Rle
        from pgcli.rle import area

        height, width = found.rle["size"]
        made["segmentation"] = {"size": [height, width], "counts": found.rle["counts"]}
        made["area"] = area(Rle((height, width), found.rle["counts"]))
    return made


COCO = Format(write, holds_boxes=True, takes=frozenset({"labels", "root"}))
