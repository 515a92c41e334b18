"""Result files for `pgcli export`, and runs of it."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy
import pytest
from PIL import Image

from pgcli.records import Mask
from pgcli.rle import encode_mask, encode_mask_parts
from pgcli.rows import RowSchema
from tests.support.answers import BOX, answer, refused
from tests.support.command import Command

#: The sizes of images with two objects, none, and one.
SIZES = {"a.png": (64, 48), "b.jpg": (40, 40), "sub/c.png": (30, 60)}


def row(index: int, **changes: Any) -> dict[str, Any]:
    """A row as commands write it."""
    extras = tuple(name for name in ("masks", "choices") if name in changes)
    layout = RowSchema(extras=extras, keep=tuple(changes.get("kept", {})))
    if "error" in changes:
        return layout.row(refused(index, changes.pop("error"), **changes))
    return layout.row(answer(index, **changes))


def saved(file: Path, rows: Iterable[dict[str, Any]]) -> Path:
    """A file of such rows."""
    file.write_text("".join(json.dumps(one) + "\n" for one in rows), encoding="utf-8")
    return file


def read_rows(file: str | Path) -> list[dict[str, Any]]:
    """The rows of a file of JSON lines."""
    return [json.loads(line) for line in Path(file).read_text(encoding="utf-8").splitlines()]


def make_images(folder: Path) -> Path:
    """A folder with the images of SIZES."""
    for name, size in SIZES.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size, (200, 30, 30)).save(file)
    return folder


def of(index: int, folder: Path, **changes: Any) -> dict[str, Any]:
    """A row about one of these images."""
    name, (width, height) = list(SIZES.items())[index]
    known = {"id": name, "image": str(folder / name), "width": width, "height": height}
    return row(index, **known | changes)


def box(label: str, *corners: float, score: float = 0.5) -> Any:
    return type(BOX)(label, *corners, score, score)


def corners(one: dict[str, Any]) -> list[float]:
    """Left, top, right and bottom of a box of a row."""
    return [one[name] for name in ("xmin", "ymin", "xmax", "ymax")]


def plain(folder: Path) -> list[dict[str, Any]]:
    """Rows of detections in these images."""
    rows = detected(folder)
    return [{key: one[key] for key in one if key != "masks"} | {"task": "detect"} for one in rows]


def detected(folder: Path) -> list[dict[str, Any]]:
    """Rows of segmentations of these images; the first box has a mask."""
    inner = numpy.ones((10, 20), bool)
    inner[0, 0] = False
    mask = Mask(tuple(range(16)), encode_mask_parts([(inner, 8, 4)], size=(48, 64)))
    boxes = (box("dog", 8.0, 4.0, 28.0, 14.0, score=0.25), box("cat", 0.0, 0.0, 64.0, 48.0))
    columns = {"task": "segment", "prompt": "segment cat ; dog"}
    return [
        of(0, folder, boxes=boxes, masks=(mask, None), **columns),
        of(1, folder, boxes=(), masks=(), **columns),
        of(2, folder, boxes=(box("cat", 3.0, 6.0, 15.0, 36.0),), masks=(None,), **columns),
    ]


def shape(height: int, width: int) -> numpy.ndarray:
    """A mask of two parts that fills the image's middle; one part is a ring."""
    y, x = numpy.mgrid[:height, :width]
    far = ((x + 0.5) / width - 0.4) ** 2 / 0.35**2 + ((y + 0.5) / height - 0.5) ** 2 / 0.4**2
    bar = (x > 0.8 * width) & (x < 0.95 * width) & (y > 0.2 * height) & (y < 0.6 * height)
    made: numpy.ndarray = ((far < 1) & (far > 0.15)) | bar
    return made


def segmented(folder: Path) -> list[dict[str, Any]]:
    """Rows with a mask of `shape` in every image, and in the first another box without one."""
    rows = []
    for index, (width, height) in enumerate(SIZES.values()):
        mask = shape(height, width)
        (top, bottom), (left, right) = (
            (int(positions[0]), int(positions[-1]) + 1)
            for positions in (numpy.flatnonzero(mask.any(axis=axis)) for axis in (1, 0))
        )
        boxes = (box("dog", float(left), float(top), float(right), float(bottom)),)
        masks: tuple[Mask | None, ...] = (Mask(tuple(range(16)), encode_mask(mask)),)
        if index == 0:
            boxes, masks = (*boxes, box("cat", 8.0, 4.0, 28.0, 14.0)), (*masks, None)
        columns = {"task": "segment", "prompt": "segment dog ; cat"}
        rows.append(of(index, folder, boxes=boxes, masks=masks, **columns))
    return rows


def captioned(folder: Path, *texts: str) -> list[dict[str, Any]]:
    """Rows of captions of the first images."""
    reported = {"task": "caption", "prompt": "caption en"}
    return [of(index, folder, answer=text, **reported) for index, text in enumerate(texts)]


def exported(
    cli: Command, rows: Path, to: str, output: Path | None, *more: object
) -> tuple[int, str]:
    """The exit code and standard error of `pgcli export`."""
    output_option = [] if output is None else ["-o", output]
    code, out, err = cli("export", rows, "--to", to, *output_option, *more)
    assert out == ""
    return code, err


def loaded(folder: Path, cache: Path) -> Any:
    datasets = pytest.importorskip("datasets", reason="a development dependency")
    return datasets.load_dataset(
        "imagefolder", data_dir=str(folder), cache_dir=str(cache), split="train"
    )


FOLDERS = ["images/a.png", "x/images/y/b.png", "images/images/c.png", "images.png"]
FOLDERS += [".hidden/d.png", ".e.png", "labels/f.png"]


def overlap(one: numpy.ndarray, other: numpy.ndarray) -> float:
    """Intersection over union."""
    return float((one & other).sum() / (one | other).sum())
