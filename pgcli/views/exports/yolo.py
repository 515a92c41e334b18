"""YOLO's folder: images/, labels/ with a line for each box or polygon, and data.yaml."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from pgcli.rows import json_text
from pgcli.views.exports.entry import Entry, Format, Found, Wanted, unhidden
from pgcli.views.exports.image_files import placed

#: What JSON leaves as it is, and YAML takes for the end of a line or for nothing to be written.
NOT_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")

#: Formats that Ultralytics reads none of, and another ending of one that it does.
UNREAD = (".gif", ".ppm", ".pgm", ".pbm", ".pnm")
CALLED = {".jpe": ".jpg", ".jfif": ".jpg"}


def write(target: Path, entries: Iterable[Entry], wanted: Wanted) -> None:
    """Fill the folder. A picture without boxes has an empty file: nothing is in it.

    Where some box has a mask, all are polygons: Ultralytics refuses labels of both kinds. A picture
    that cannot be read is left out with its boxes.
    """
    (target / "images").mkdir()
    (target / "labels").mkdir()
    for entry in entries:
        if not placed(target / "images", entry, wanted):
            continue
        lines = [line(found, entry, wanted) for found in entry.found()]
        file = target / "labels" / f"{entry.stem}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(lines), encoding="utf-8")
        wanted.tally.pictures += 1
        wanted.tally.unread += entry.name.lower().endswith(UNREAD)
        wanted.tally.boxes += len(lines)
    names = "".join(f"  {place}: {quoted(label)}\n" for label, place in wanted.labels.items())
    head = "train: images\nval: images\nnames:"
    (target / "data.yaml").write_text(f"{head}\n{names}" if names else f"{head} {{}}\n", "utf-8")


def line(found: Found, entry: Entry, wanted: Wanted) -> str:
    """Class, and middle and size of a box or the points of a polygon, as shares of the sides."""
    left, right = shares(found.left, found.left + found.width, entry.width)
    top, bottom = shares(found.top, found.top + found.height, entry.height)
    numbers: Sequence[float]
    if not wanted.masks:
        numbers = ((left + right) / 2, (top + bottom) / 2, right - left, bottom - top)
    elif not (numbers := outline(found, entry)):
        wanted.tally.maskless += 1
        numbers = (left, top, right, top, right, bottom, left, bottom)
    return f"{wanted.labels[found.label]} " + " ".join(f"{one:.6f}" for one in numbers) + "\n"


def outline(found: Found, entry: Entry) -> list[float]:
    """The mask's polygon, x and y in turn, as shares of the sides; empty where there is none."""
    if found.mask is None:
        return []
    from pgcli.views.exports.polygons import polygon

    flat: list[float] = (polygon(found.mask) / (entry.width, entry.height)).ravel().tolist()
    return flat


def shares(low: float, high: float, side: int) -> tuple[float, float]:
    """Both as shares of the side, within it."""
    return min(max(low / side, 0.0), 1.0), min(max(high / side, 0.0), 1.0)


def tidied(part: str, is_folder: bool) -> str:
    """The name as Ultralytics finds it, and its labels, which it looks for where the last folder in
    a picture's path that is called `images` is called `labels`.
    """
    part = unhidden(part, is_folder)
    return f"{part}_" if is_folder and part == "images" else part


def quoted(label: str) -> str:
    """The label as YAML reads it: as JSON spells it, but for what YAML has other rules for."""
    return NOT_YAML.sub(lambda found: f"\\u{ord(found[0]):04x}", json_text(label))


YOLO = Format(
    write,
    is_folder=True,
    holds_boxes=True,
    opens=True,
    by_stem=True,
    endings=frozenset({".txt"}),
    tidied=tidied,
    called=CALLED,
    takes=frozenset({"labels", "pictures"}),
)
