"""The inputs that scenarios name after `in:`. Each is made in the scenario's empty folder.

photos         a folder of three drawings: dusk.jpg, few.jpg, one.png
shapes         a folder of two drawings: crosses.png, stars.jpg
words          a folder of one drawing of words: plain.png
turned         a folder of turned.jpg, which EXIF rotates
nested         a folder with a/one.png, b/c/few.jpg, B.PNG, a hidden image and a text
flowers        a folder for each label: circle/few.jpg, star/one.png
bad            a folder of good.png and of files that cannot be read: cut.jpg, empty.png, text.png
many           a folder of 24 small drawings, 00.png to 23.png
paths.parquet  a table of three paths in photos/, with sku, price and taken
bytes.parquet  a table of two images as bytes, with id
struct.parquet a table of two images as structs {bytes, path}, with prompt
tables         a folder of two tables of one image as bytes each, below shop=de/ and shop=fr/
shard.tar      an archive of two samples: an image, JSON and a text each
"""

import json
import shutil
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from tests.support.awkward import tar_of

DRAWINGS = Path(__file__).parents[2] / "examples"


def make(name: str, folder: Path) -> None:
    """Make an input in the folder."""
    target = folder / name
    if name in FOLDERS:
        for place, drawing in FOLDERS[name].items():
            (target / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(DRAWINGS / drawing, target / place)
    elif name in TABLES:
        pq.write_table(pa.table(TABLES[name]()), target)
    else:
        {"bad": bad, "many": many, "tables": tables, "shard.tar": shard}[name](target)
    if name == "nested":
        (target / "notes.txt").write_text("not an image\n")


def read(name: str) -> bytes:
    return (DRAWINGS / "images" / name).read_bytes()


FOLDERS = {
    "photos": {name: f"images/{name}" for name in ("dusk.jpg", "few.jpg", "one.png")},
    "shapes": {name: f"images/{name}" for name in ("crosses.png", "stars.jpg")},
    "words": {"plain.png": "words/plain.png"},
    "turned": {"turned.jpg": "images/turned.jpg"},
    "nested": {
        "a/one.png": "images/one.png",
        "b/c/few.jpg": "images/few.jpg",
        "B.PNG": "images/blue.png",
        ".hidden/x.png": "images/one.png",
    },
    "flowers": {"circle/few.jpg": "images/few.jpg", "star/one.png": "images/one.png"},
}


def paths() -> dict[str, Any]:
    times = [datetime(2024, 5, day, 12, tzinfo=UTC) for day in (1, 2, 3)]
    return {
        "image": [f"photos/{name}" for name in ("dusk.jpg", "few.jpg", "one.png")],
        "sku": pa.array([7, 8, 9], pa.int32()),
        "price": pa.array([Decimal("19.90")] * 3, pa.decimal128(12, 2)),
        "taken": pa.array(times, pa.timestamp("ms", "Europe/Berlin")),
    }


def in_bytes() -> dict[str, Any]:
    return {"id": ["first", "second"], "image": [read("one.png"), read("few.jpg")]}


def structs() -> dict[str, Any]:
    images = [{"bytes": read("one.png"), "path": "one.png"}]
    images.append({"bytes": read("few.jpg"), "path": None})  # type: ignore[dict-item]
    return {"image": images, "prompt": ["is there a star?", "how many shapes are there?"]}


TABLES = {"paths.parquet": paths, "bytes.parquet": in_bytes, "struct.parquet": structs}


def bad(folder: Path) -> None:
    folder.mkdir()
    (folder / "cut.jpg").write_bytes(read("dusk.jpg")[:6000])
    (folder / "empty.png").write_bytes(b"")
    (folder / "good.png").write_bytes(read("one.png"))
    (folder / "text.png").write_text("not an image\n")


def many(folder: Path) -> None:
    folder.mkdir()
    names = ("crosses.png", "dusk.jpg", "few.jpg", "one.png")
    drawings = [Image.open(DRAWINGS / "images" / name).resize((112, 112)) for name in names]
    for number in range(24):
        drawings[number % 4].save(folder / f"{number:02}.png")


def tables(folder: Path) -> None:
    for shop, name in (("de", "one.png"), ("fr", "few.jpg")):
        (folder / f"shop={shop}").mkdir(parents=True)
        table = pa.table({"image": [read(name)], "id": [f"{shop}-0"]})
        pq.write_table(table, folder / f"shop={shop}" / "0.parquet")


def shard(file: Path) -> None:
    members = {
        "a/0.png": read("one.png"),
        "a/0.json": json.dumps({"sku": 7}).encode(),
        "a/0.txt": b"stars and more",
        "a/1.jpg": read("few.jpg"),
        "a/1.json": json.dumps({"sku": 8}).encode(),
        "a/1.txt": b"a square",
    }
    file.write_bytes(tar_of(members.items()))
