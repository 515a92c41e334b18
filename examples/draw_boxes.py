"""Draws the boxes and masks of a result file on its images.

    pgcli detect examples/images --object circle --object star --model demo -o boxes.jsonl
    python examples/draw_boxes.py boxes.jsonl drawn/

(`pgcli detect ... --draw drawn` does it during the run.) A row's corners are in pixels of the
upright image, so the image's EXIF orientation is applied first.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pgcli import Box
from pgcli.images import ImageLimits, load_image
from pgcli.records import Mask, Rle
from pgcli.results.drawings.colours import LabelColours
from pgcli.results.drawings.overlay import draw_overlay


def main(results: str, folder: str) -> None:
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    rows = [json.loads(line) for line in Path(results).read_text(encoding="utf-8").splitlines()]
    colours = LabelColours(box["label"] for row in rows for box in row["boxes"])
    for row in rows:
        if row["error"] or not row["boxes"]:
            continue
        image = load_image(row["image"], ImageLimits())
        boxes = [Box(**box) for box in row["boxes"]]
        masks = tuple(mask and read(mask) for mask in row.get("masks") or ()) or None
        name = f"{row['index']:04d}-{Path(row['image']).stem}.png"
        draw_overlay(image, boxes, masks, colours=colours).save(out / name)
        print(out / name)


def read(mask: dict[str, Any]) -> Mask:
    """The mask of a row."""
    rle = mask["rle"]
    return Mask(tuple(mask["codes"]), rle and Rle(tuple(rle["size"]), rle["counts"]))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: draw_boxes.py ROWS.jsonl FOLDER")
    main(*sys.argv[1:])
