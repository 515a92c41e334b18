"""Draw the boxes of a run's rows on its pictures.

    pgcli detect examples/images --object circle --object star --model demo -o boxes.jsonl
    python examples/draw_boxes.py boxes.jsonl drawn/

A row's corners are pixels of the upright picture, so the picture is turned first as its EXIF says.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont, ImageOps

# one for each label, in the order of their first appearance
COLOURS = ("#e6194b", "#1467d6", "#0b8a3e", "#b05f00", "#8e24aa", "#00838f")


def main(results: str, folder: str) -> None:
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    colours: dict[str, str] = {}
    for line in Path(results).read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["error"] or not row["boxes"]:
            continue
        with Image.open(row["image"]) as file:
            picture = ImageOps.exif_transpose(file).convert("RGB")
        for box in row["boxes"]:
            colour = colours.setdefault(box["label"], COLOURS[len(colours) % len(COLOURS)])
            draw(picture, box, colour)
        name = f"{row['index']:04d}-{Path(row['image']).stem}.png"
        picture.save(out / name)
        print(out / name)


def draw(picture: Image.Image, box: dict[str, object], colour: str) -> None:
    """One box, with its label on a ground of the same colour, inside the picture at any size."""
    line = max(2, min(picture.size) // 150)
    pencil = ImageDraw.Draw(picture)
    corners = [box[side] for side in ("xmin", "ymin", "xmax", "ymax")]
    pencil.rectangle(corners, outline=colour, width=line)
    font = ImageFont.load_default(size=max(12, min(picture.size) // 24))
    label = str(box["label"])
    width, height = pencil.textbbox((0, 0), label, font=font)[2:]
    left = min(corners[0], picture.width - width - 2 * line)
    top = max(0, corners[1] - height - 2 * line)
    ground = (left, top, left + width + 2 * line, top + height + 2 * line)
    pencil.rectangle(ground, fill=colour)
    pencil.text((left + line, top), label, fill="white", font=font)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: draw_boxes.py ROWS.jsonl FOLDER")
    main(*sys.argv[1:])
