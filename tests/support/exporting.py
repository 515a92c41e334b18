"""Answers, result files of them, and exports."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy
import pycocotools.mask
import pytest
from PIL import Image

from pgcli.output import result_target, write_result_file
from pgcli.output.schema import rows_table
from pgcli.output.tables import PARQUET, PartInfo, part_metadata
from pgcli.records import Answer, Box, Mask
from pgcli.rle import encode_mask, encode_mask_parts
from pgcli.rows import RowSchema
from pgcli.run.state.record import RUN, RunRecord, state_location
from pgcli.stores import LocalStore
from tests.support.runs import Command

BOX = Box("red car", 12.25, 30.5, 200.0, 180.0, 0.875, 0.9375)


def answer(index=0, **changes):
    known = {
        "index": index,
        "id": f"{index}.png",
        "image": f"images/{index}.png",
        "width": 640,
        "height": 480,
        "task": "ask",
        "prompt": "what?",
        "answer": "a car",
        "boxes": (),
        "tokens": 3,
        "finish": "stop",
        "logprob": -0.25,
        "load_ms": 1.5,
        "vision_ms": 2.5,
        "prefill_ms": 3.5,
        "decode_ms": 4.5,
        "batch": 8,
        "model": "demo@1",
        "error": None,
        "error_message": None,
    }
    return Answer(**known | changes)


def refused(index=0, code="truncated", message="it ends early", **changes):
    null = dict.fromkeys(("answer", "tokens", "finish", "logprob", "vision_ms", "batch"))
    return answer(index, error=code, error_message=message, **null | changes)


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


def detections(supervision: Any, row: Answer) -> Any:
    """The detections from the page's lines for an answer."""
    page = Path(__file__).parents[2] / "docs" / "how-to" / "use-from-python.md"
    text = page.read_text(encoding="utf-8")
    (lines,) = re.findall(r"```py\n(boxes = .*?)```", text, flags=re.DOTALL)
    made: dict[str, Any] = {"answer": row, "np": numpy, "sv": supervision}
    made |= {"labels": ["dog", "red car"], "pycocotools": pycocotools, "dataclasses": dataclasses}
    exec(lines, made)
    return made["detections"]


def save(path: Path | str, *answers: Answer, **schema: Any) -> None:
    """Save rows in an output with a record; `schema` holds arguments of the RowSchema."""
    target, columns = Path(path), RowSchema(**schema)
    values = [columns.row(answer) for answer in answers]
    if str(path).endswith("/"):
        target.mkdir()
        table = rows_table(values, columns)
        with (target / "part-000000.parquet").open("wb") as file:
            PARQUET.write_tables(file, [table], part_metadata(PartInfo("1", 0, len(values))))
    else:
        write_result_file(result_target(str(target)), values, columns)
    state = LocalStore(Path(state_location(str(path))), create=True)
    state.create(RUN, RunRecord("1", {}, file_rows=10_000).to_bytes())
