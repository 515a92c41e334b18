"""Tests exports with the tools that read them, which are too large to be dependencies.

Run in a separate environment: `pip install ultralytics fiftyone label-studio-sdk supervision`.
"""

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import yaml
from PIL import Image

from pgcli.records import Mask
from pgcli.rle import encode_mask
from tests.support.exporting import (
    BOX,
    FOLDERS,
    SIZES,
    answer,
    captioned,
    detections,
    exported,
    overlap,
    plain,
    read_rows,
    saved,
    shape,
)
from tests.support.fuzz_imports import SIZES as IMPORT_SIZES
from tests.support.fuzz_yolo import some_yolo, write_folder, yolo_boxes

HEAVY = "hundreds of megabytes: tested in a separate environment"


@pytest.fixture
def boxes(folder, tmp_path) -> Path:
    return saved(tmp_path / "boxes.jsonl", plain(folder))


# Ultralytics


@pytest.fixture
def ultralytics(tmp_path, monkeypatch) -> Any:
    """The module, offline, with its settings in the temporary folder."""
    monkeypatch.setenv("YOLO_CONFIG_DIR", str(tmp_path / "settings"))
    monkeypatch.setenv("YOLO_OFFLINE", "true")
    return pytest.importorskip("ultralytics", reason=HEAVY)


def loaded(output: Path, task: str) -> dict[str, Any]:
    """The labels that Ultralytics trains on, by the name of the image."""
    from ultralytics.data.dataset import YOLODataset
    from ultralytics.data.utils import check_det_dataset

    known = check_det_dataset(str(output / "data.yaml"))
    assert known["names"] == {0: "cat", 1: "dog"}
    found = YOLODataset(img_path=known["train"], data=known, task=task, augment=False, imgsz=64)
    for index in range(len(found)):
        assert found[index]["img"].shape[0] == 3
    images = output.resolve() / "images"
    return {str(Path(one["im_file"]).relative_to(images)): one for one in found.labels}


def test_ultralytics_reads_boxes_and_an_image_without_boxes(ultralytics, cli, boxes, tmp_path):
    exported(cli, boxes, "yolo", tmp_path / "yolo")
    found = loaded(tmp_path / "yolo", "detect")
    assert found.keys() == set(SIZES)
    assert found["a.png"]["cls"].ravel().tolist() == [1, 0]
    width, height = SIZES["a.png"]
    shares = found["a.png"]["bboxes"] * [width, height, width, height]
    assert shares == pytest.approx(numpy.array([[18, 9, 20, 10], [32, 24, 64, 48]]), abs=1e-3)
    assert len(found["b.jpg"]["cls"]) == 0
    assert not any(one["segments"] for one in found.values())


def test_ultralytics_finds_the_labels_of_images_with_any_name(ultralytics, cli, folder, tmp_path):
    (first, *_), names = plain(folder), [*FOLDERS, "g.jfif", "h.jpe"]
    rows = [first | {"index": index, "id": id_} for index, id_ in enumerate(names)]
    (tmp_path / "images").mkdir()
    exported(cli, saved(tmp_path / "r.jsonl", rows), "yolo", tmp_path / "images" / "yolo")
    found = loaded(tmp_path / "images" / "yolo", "detect")
    assert len(found) == len(names)
    assert all(one["cls"].ravel().tolist() == [1, 0] for one in found.values())


@pytest.mark.parametrize("task", ["segment", "detect"])
def test_ultralytics_reads_masks_and_boxes(ultralytics, cli, masks, tmp_path, task):
    from ultralytics.data.utils import polygon2mask

    exported(cli, masks, "yolo", tmp_path / "yolo")
    found = loaded(tmp_path / "yolo", task)
    assert found.keys() == set(SIZES)
    for name, (width, height) in SIZES.items():
        one = found[name]
        assert len(one["segments"]) == len(one["bboxes"]) == len(one["cls"])
        mask = shape(height, width)
        y, x = numpy.nonzero(mask)
        left, top, right, bottom = x.min(), y.min(), x.max() + 1, y.max() + 1
        box = [(left + right) / 2, (top + bottom) / 2, right - left, bottom - top]
        at = one["bboxes"][0] * [width, height, width, height]
        assert at == pytest.approx(numpy.array(box), abs=1e-3)
        # it also draws the outline, here an eighth of a pixel to each side
        large = one["segments"][0] * (width, height) * 8
        painted = polygon2mask((height * 8, width * 8), [large.ravel()])[4::8, 4::8]
        assert overlap(painted > 0, mask) > 0.95


@pytest.mark.parametrize("task", ["segment", "detect"])
def test_ultralytics_trains_on_an_export(ultralytics, cli, masks, tmp_path, task, monkeypatch):
    from ultralytics.utils.nms import TorchNMS

    # torchvision does not load with every build of PyTorch; this replaces the functions in use
    vision = SimpleNamespace(ops=SimpleNamespace(nms=TorchNMS.nms), __spec__=None)
    monkeypatch.setitem(sys.modules, "torchvision", vision)
    exported(cli, masks, "yolo", tmp_path / "yolo")
    model = ultralytics.YOLO({"segment": "yolo11n-seg.yaml", "detect": "yolo11n.yaml"}[task])
    options = {"imgsz": 64, "batch": 3, "device": "cpu", "workers": 0, "plots": False}
    trained = model.train(
        data=str(tmp_path / "yolo" / "data.yaml"),
        epochs=1,
        project=str(tmp_path / "trained"),
        amp=False,
        **options,
    )
    assert trained.nt_per_class.tolist() == [1, 3]  # objects of each label
    # the caches in the folder do not prevent another export
    assert list((tmp_path / "yolo").rglob("*.cache"))
    assert exported(cli, masks, "yolo", tmp_path / "yolo", "--overwrite")[0] == 0


# FiftyOne


def test_fiftyone_imports_boxes_scores_and_masks(cli, masks, tmp_path):
    """Uses the importer of `Dataset.from_dir`, as a dataset needs MongoDB."""
    pytest.importorskip("fiftyone", reason=HEAVY)
    from fiftyone.utils.coco import COCODetectionDatasetImporter

    output = tmp_path / "fiftyone"
    exported(cli, masks, "fiftyone", output)
    with COCODetectionDatasetImporter(dataset_dir=str(output)) as importer:
        samples = {str(Path(path).relative_to(output / "data")): one for path, *one in importer}
    assert importer.get_dataset_info()["classes"] == ["cat", "dog"]
    assert samples.keys() == set(SIZES)
    for name, (width, height) in SIZES.items():
        metadata, label = samples[name]
        assert (metadata.width, metadata.height) == (width, height)
        one, mask = label["segmentations"].detections[0], shape(height, width)
        assert (one.label, one.confidence) == ("dog", 0.5)
        left, top = round(one.bounding_box[0] * width), round(one.bounding_box[1] * height)
        h, w = one.mask.shape
        assert (one.mask == mask[top : top + h, left : left + w]).all()
        assert one.mask.sum() == mask.sum()
    other = samples["a.png"][1]["detections"].detections[1]
    assert other.bounding_box == pytest.approx([8 / 64, 4 / 48, 20 / 64, 10 / 48])


# Label Studio


def test_label_studio_sdk_accepts_tasks_with_the_documented_interface(
    cli, masks, boxes, folder, tmp_path
):
    pytest.importorskip("label_studio_sdk", reason=HEAVY)
    from label_studio_sdk.label_interface import LabelInterface

    interface = LabelInterface(labelling_interface())
    interface.validate()
    captions = saved(tmp_path / "captions.jsonl", captioned(folder, "one", "", "three"))
    for file, kinds in ((masks, {"polygonlabels", "rectanglelabels"}), (captions, {"textarea"})):
        exported(cli, file, "labelstudio", tmp_path / "tasks.json", "--overwrite")
        tasks = json.loads((tmp_path / "tasks.json").read_text())
        assert kinds == {one["type"] for task in tasks for one in task["predictions"][0]["result"]}
        for task in tasks:
            assert interface.validate_task({"data": task["data"]})
            for prediction in task["predictions"]:
                assert interface.validate_prediction(prediction, return_errors=True) == []


def labelling_interface() -> str:
    """That of the documentation, with the labels of these rows."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "export.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```xml\n(.*?)```", page, flags=re.DOTALL)
    return str(text).replace("star", "dog").replace("circle", "cat")


def test_label_studio_converter_makes_coco_of_an_export(cli, masks, tmp_path):
    pytest.importorskip("label_studio_sdk", reason=HEAVY)
    from label_studio_sdk.converter.converter import Converter

    exported(cli, masks, "labelstudio", tmp_path / "tasks.json")
    tasks = json.loads((tmp_path / "tasks.json").read_text())
    for number, task in enumerate(tasks):
        annotation = task.pop("predictions")[0] | {"id": number, "created_at": ""}
        task |= {"id": number, "annotations": [annotation]}
    (tmp_path / "annotated.json").write_text(json.dumps(tasks))
    converter = Converter(labelling_interface(), str(tmp_path), download_resources=False)
    converter.convert_to_coco(str(tmp_path / "annotated.json"), str(tmp_path), is_dir=False)
    made = json.loads((tmp_path / "result.json").read_text())
    names = {one["id"]: one["name"] for one in made["categories"]}
    boxes = [box for row in read_rows(masks) for box in row["boxes"]]
    for annotation, box in zip(made["annotations"], boxes, strict=True):
        left, top, width, height = annotation["bbox"]
        assert names[annotation["category_id"]] == box["label"]
        found = (left, top, left + width, top + height)
        known = [box[name] for name in ("xmin", "ymin", "xmax", "ymax")]
        assert found == pytest.approx(known, abs=1e-3)


def test_oracle_of_yolo_agrees_with_ultralytics(ultralytics, tmp_path):
    from ultralytics.data.utils import verify_image_label

    for number, data in enumerate(some_yolo()):
        folder = tmp_path / str(number)
        folder.mkdir()
        write_folder(folder, data)
        known = yaml.safe_load((folder / "data.yaml").read_text())
        points, dimensions = known.get("kpt_shape", (0, 0))
        expected = yolo_boxes(folder / "data.yaml")
        is_read = []
        for name, (width, height) in IMPORT_SIZES.items():
            Image.new("RGB", (width, height)).save(folder / name)
            labels = str((folder / name).with_suffix(".txt"))
            options = ("", points > 0, 2, points, dimensions, False)
            rows = verify_image_label((str(folder / name), labels, *options))[1]
            is_read.append(rows is not None)
            if expected is not None and rows is not None:
                x, y, across, down = (rows[:, 1:] * [width, height, width, height]).T
                edges_n4 = numpy.stack(
                    [x - across / 2, y - down / 2, x + across / 2, y + down / 2], 1
                )
                read_n4 = numpy.clip(edges_n4, 0, [width, height, width, height])
                boxes = sorted(box[1:] for box in expected[name])
                for box, own in zip(sorted(read_n4.tolist()), boxes, strict=True):
                    assert own == pytest.approx(box, abs=1e-3)
        assert all(is_read) == (expected is not None)


# supervision


def test_supervision_reads_coco_and_yolo_with_masks(cli, masks, folder, tmp_path):
    supervision = pytest.importorskip("supervision", reason=HEAVY)
    exported(cli, masks, "coco", tmp_path / "coco.json", "--images", folder)
    exported(cli, masks, "yolo", tmp_path / "yolo")
    labels = str(tmp_path / "yolo" / "labels")
    read = (
        supervision.DetectionDataset.from_coco(str(folder), str(tmp_path / "coco.json")),
        supervision.DetectionDataset.from_yolo(
            str(tmp_path / "yolo" / "images"), labels, str(tmp_path / "yolo" / "data.yaml")
        ),
    )
    for dataset, least in zip(read, (1.0, 0.8), strict=True):  # its outlines enlarge small polygons
        assert dataset.classes == ["cat", "dog"]
        found = {Path(path).name: one for path, _, one in dataset}
        width, height = SIZES["a.png"]
        assert found["a.png"].class_id.tolist() == [1, 0]
        assert found["a.png"].xyxy[1] == pytest.approx([8, 4, 28, 14], abs=1e-3)
        assert overlap(found["a.png"].mask[0], shape(height, width)) >= least


def test_supervision_accepts_the_detections_of_the_documentation():
    supervision = pytest.importorskip("supervision", reason=HEAVY)
    grid = shape(30, 40)
    mask = Mask((0,) * 16, encode_mask(grid))
    assert len(detections(supervision, answer(0))) == 0
    reported = detections(
        supervision, answer(0, task="segment", boxes=(BOX, BOX), masks=(mask, mask))
    )
    assert len(reported) == 2
    assert reported.area.tolist() == [grid.sum()] * 2
    assert (reported[reported.confidence > 0.5].mask == grid).all()
