"""Label Studio's fuzz target with its own reader as the oracle, and its seeds.

The reader has the formulas of label-studio-sdk, which is too large for a dependency;
`test_export_tools.py` compares the two.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.fuzz_imports import SIZES, PlainBox, check_import, clipped

Corners = tuple[float, float, float, float]


def labelstudio(folder: Path, data: bytes) -> None:
    """Import the bytes as Label Studio's JSON: the boxes of this reader, or an error."""
    file = folder / "tasks.json"
    file.write_bytes(data)
    check_import("labelstudio", file, labelstudio_boxes)


def labelstudio_boxes(file: Path) -> dict[str, list[PlainBox]] | None:
    """The labelled regions of the annotations, or of predictions if nobody annotated."""
    try:
        return read_tasks(json.loads(file.read_bytes()))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        return None


def read_tasks(tasks: Any) -> dict[str, list[PlainBox]] | None:
    key = "annotations" if any(task.get("annotations") for task in tasks) else "predictions"
    boxes: dict[str, list[PlainBox]] = {}
    for task in tasks:
        given = [one for one in task.get(key) or [] if not one.get("was_cancelled")]
        if not given:
            continue
        name = task["data"]["image"]
        if name not in SIZES:
            return None
        if key == "annotations":
            given = [max(given, key=lambda one: (one.get("ground_truth") is True,
                                                 str(one.get("updated_at"))))]  # fmt: skip
        own = boxes.setdefault(plain(task["data"].get("id") or name), [])
        for annotation in given:
            known = {}
            for result in annotation["result"]:
                for label in result["value"].get(result["type"]) or []:
                    if result["type"].endswith("labels") and not result.get("image_rotation"):
                        label = plain(label).strip()
                        place = corners(result["value"], *SIZES[name])
                        found = place and clipped(label, place, SIZES[name])
                        known[str(result.get("id", id(result))), label, place] = found
            own += filter(None, known.values())
    return boxes


def plain(text: str) -> str:
    """The text with U+FFFD for lone surrogates."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def corners(value: dict[str, Any], width: int, height: int) -> Corners | None:
    """A region's bounding box in pixels; None for a region that is not a shape with an area."""
    if "rle" in value:
        return None
    if "points" in value:
        outline = [(x / 100 * width, y / 100 * height) for x, y in value["points"]]
        return bounds(outline) if len(outline) > 2 else None
    x, y = value["x"] / 100 * width, value["y"] / 100 * height
    angle = math.radians(value.get("rotation") or 0)
    cosine, sine = math.cos(angle), math.sin(angle)
    if "radiusX" in value:
        across, down = value["radiusX"] / 100 * width, value["radiusY"] / 100 * height
        half_x = math.sqrt((across * cosine) ** 2 + (down * sine) ** 2)
        half_y = math.sqrt((across * sine) ** 2 + (down * cosine) ** 2)
        return x - half_x, y - half_y, x + half_x, y + half_y
    if "height" not in value:
        return None
    across, down = value["width"] / 100 * width, value["height"] / 100 * height
    return bounds(
        [
            (x, y),
            (x + across * cosine, y + across * sine),
            (x + across * cosine - down * sine, y + across * sine + down * cosine),
            (x - down * sine, y + down * cosine),
        ]
    )


def bounds(points: list[tuple[float, float]]) -> Corners:
    """Left, top, right and bottom of points."""
    columns, rows = zip(*points, strict=True)
    return min(columns), min(rows), max(columns), max(rows)


def some_labelstudio() -> Iterator[bytes]:
    """Tasks with each kind of region, turned and upright, and one with predictions."""
    place = {"x": 10, "y": 20, "width": 30, "height": 40.5}
    for kind, value in (
        ("rectanglelabels", place),
        ("rectanglelabels", place | {"rotation": 33}),
        ("rectanglelabels", place | {"height": -12.5, "rotation": 270}),
        ("ellipselabels", {"x": 50, "y": 50, "radiusX": 20, "radiusY": 10, "rotation": 30}),
        ("polygonlabels", {"points": [[10, 10], [60.5, 20], [30, 70]]}),
        ("brushlabels", {"format": "rle", "rle": [0, 0, 48]}),
        ("keypointlabels", {"x": 1, "y": 2, "width": 0.5}),
    ):
        yield json.dumps(document({"type": kind, "value": value | {kind: ["cat"]}})).encode()
    region = {
        "type": "rectanglelabels",
        "value": place | {"rectanglelabels": ["cat"]},
        "score": 0.9,
    }
    (task, _) = document(region)
    yield json.dumps([{"data": task["data"], "predictions": task["annotations"]}]).encode()


def document(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Two tasks: the second has no regions, the first has this one and another."""
    value = {"x": 5, "y": 5, "width": 9, "height": 9, "labels": ["red car"]}
    other = {"id": "r", "type": "labels", "value": value, "to_name": "image"}
    shared = {"id": "s", "original_width": 64, "original_height": 48, "to_name": "image"}
    return [
        {"data": {"image": "a.png"}, "annotations": [{"result": [shared | result, other]}]},
        {"data": {"image": "b.png", "id": "second"}, "annotations": [{"result": []}]},
    ]
