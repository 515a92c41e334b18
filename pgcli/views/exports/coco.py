"""COCO's JSON: images, annotations with boxes, masks and scores, and categories; or captions."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pgcli.rows import json_text
from pgcli.views.exports.entry import Entry, Format, Found, Wanted


def write(target: Path, entries: Iterable[Entry], wanted: Wanted) -> None:
    """Write the file; pictures are named as the rows name them."""
    document(target, ((entry, entry.image) for entry in entries), wanted)


def document(target: Path, named: Iterable[tuple[Entry, str]], wanted: Wanted) -> None:
    """Write entries, each with its file's name. Holds one of them at a time.

    Rows that were to have boxes make a file of instances, others one of captions. Annotations wait
    in a file of their own, as COCO has all images first.
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
            for made in instances(entry, wanted) if wanted.looks else captions(entry, wanted):
                waiting.write(",\n" if made["id"] > 1 else "\n")
                waiting.write(json_text(made))
        file.write('\n],"annotations":[')
        waiting.seek(0)
        shutil.copyfileobj(waiting, file)
        file.write("\n]")
        if wanted.looks:  # pycocotools asks every annotation for a category where there are any
            known = [{"id": place + 1, "name": label} for label, place in wanted.labels.items()]
            file.write(f',"categories":{json_text(known)}')
        file.write("}\n")


def captions(entry: Entry, wanted: Wanted) -> Iterator[dict[str, Any]]:
    """The picture's answers as COCO has captions, each with the prompt that it answers."""
    for row in entry.rows:
        wanted.tally.captions += 1
        made = {"id": wanted.tally.captions, "image_id": entry.number}
        yield made | {"caption": row["answer"] or "", "prompt": row["prompt"]}


def instances(entry: Entry, wanted: Wanted) -> Iterator[dict[str, Any]]:
    """The picture's boxes as COCO has objects."""
    for found in entry.found():
        wanted.tally.boxes += 1
        yield annotation(found, entry, wanted)


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
    if found.mask is not None:
        from pgcli.rle import area

        made["segmentation"] = {"size": list(found.mask.size), "counts": found.mask.counts}
        made["area"] = area(found.mask)
    return made


COCO = Format(write, takes=frozenset({"labels", "root"}))
