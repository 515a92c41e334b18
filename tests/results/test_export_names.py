"""Tests `pgcli export`: file names that each tool reads correctly, for any row ids."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.support.exporting import FOLDERS, box, exported, loaded, row, saved

SPLITS = ["test.png", "train/a.jpg", "test/a.png", "val/b.png", "COCO_val2014_000000000042.jpg"]
SPLITS += ["my test/1.png", "eval.d/x-train-1.png", "data/x-00000-of-00001.png", "dev", "a/valid"]
ODD = ['it\'s "so".png', "a::b/c.png", "#1?&.png", "[ab]*{x}.png", "~/~x.png", "100%20.png"]
ODD += [".hidden.png", ".dot/a.png", "__pycache__/a.png", "é\u2028ü.png", "metadata.jsonl/x.png"]
ODD += [".pgcli-export/b.png", "a.png/b.png", "a.png", "README.md", "x.eval", "task.toml/y.png"]
PLAIN = ["attest.png", "latest/trained.png", "Test.png", "sub/c.png"]  # these are not renamed


def answered(folder: Path, ids: Sequence[str], **changes: Any) -> list[dict[str, Any]]:
    """Rows of images with these ids; the answer and the red value are the index."""
    folder.mkdir()
    rows = []
    for index, id_ in enumerate(ids):
        file = folder / f"{index}.png"
        Image.new("RGB", (100, 80), (index, 0, 0)).save(file)
        known = {"id": id_, "image": str(file), "width": 100, "height": 80}
        rows.append(row(index, **known | changes | {"answer": str(index)}))
    return rows


def detected(folder: Path, ids: Sequence[str]) -> list[dict[str, Any]]:
    """The same rows with one box each; its width is the index plus one."""
    rows = answered(folder, ids, task="detect", boxes=(box("cat", 0.0, 0.0, 1.0, 1.0),))
    for index, one in enumerate(rows):
        one["boxes"][0]["xmax"] = index + 1.0
    return rows


def made(folder: Path) -> list[str]:
    """The files in a folder and its subfolders."""
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if not file.is_dir())


# datasets


@pytest.mark.parametrize("ids", [SPLITS, ODD, SPLITS + ODD + PLAIN, ["data/x-00000-of-00001.png"]])
@pytest.mark.parametrize("how", ["link", "copy"])
def test_datasets_loads_images_with_any_name_and_their_texts(cli, tmp_path, how, ids):
    datasets = pytest.importorskip("datasets", reason="a development dependency")
    rows = saved(tmp_path / "r.jsonl", answered(tmp_path / "photos", ids))
    output = tmp_path / "test"
    assert exported(cli, rows, "imagefolder", output, "--store-images", how)[0] == 0
    wanted = {str(index): (index, 0, 0) for index in range(len(ids))}
    for number, name in enumerate([("imagefolder", str(output)), (str(output), None)]):
        known = datasets.load_dataset(*name[:1], data_dir=name[1], cache_dir=tmp_path / f"{number}")
        assert list(known) == ["train"]
        assert {one["text"]: one["image"].getpixel((0, 0)) for one in known["train"]} == wanted


def test_datasets_loads_images_with_any_name_and_their_boxes(cli, tmp_path):
    rows = saved(tmp_path / "r.jsonl", detected(tmp_path / "photos", SPLITS))
    exported(cli, rows, "imagefolder", tmp_path / "out")
    known = loaded(tmp_path / "out", tmp_path / "cache")
    widths = {one["image"].getpixel((0, 0))[0]: one["objects"]["bbox"][0][2] for one in known}
    assert widths == {index: index + 1 for index in range(len(SPLITS))}


# YOLO


def test_yolo_folders_called_images_or_hidden_are_renamed(cli, tmp_path):
    rows = saved(tmp_path / "r.jsonl", detected(tmp_path / "photos", FOLDERS))
    code, err = exported(cli, rows, "yolo", tmp_path / "out")
    assert code == 0
    images = made(tmp_path / "out" / "images")
    assert set(images) == {
        "images_/a.png",
        "x/images_/y/b.png",
        "images_/images_/c.png",
        "images.png",
        "_.hidden/d.png",
        "_.e.png",
        "labels/f.png",
    }
    assert made(tmp_path / "out" / "labels") == [f"{name[:-4]}.txt" for name in images]
    assert "images/a.png is images_/a.png, x/images/y/b.png is x/images_/y/b.png" in err


def test_yolo_counts_images_that_ultralytics_does_not_read(cli, tmp_path):
    ids = ["a.jfif", "b.JPE", "c.JPEG", "d.gif", "e.ppm"]
    file = saved(tmp_path / "r.jsonl", detected(tmp_path / "photos", ids))
    err = exported(cli, file, "yolo", tmp_path / "out")[1]
    assert made(tmp_path / "out" / "images") == ids
    assert "; 4 images that Ultralytics does not read: GIF, PPM, .jpe and .jfif" in err


def test_yolo_images_without_suffix_have_separate_labels(cli, tmp_path):
    ids = ["p/v1.2", "p/v1.3", "p/v1"]
    rows = detected(tmp_path / "photos", ids)
    rows = [one | {"image": one["id"]} for one in rows]
    file = saved(tmp_path / "r.jsonl", rows)
    assert exported(cli, file, "yolo", tmp_path / "out", "--store-images", "none")[0] == 0
    assert made(tmp_path / "out" / "labels") == ["p/v1.2.txt", "p/v1.3.txt", "p/v1.txt"]
    texts = {(tmp_path / "out" / "labels" / f"{id_}.txt").read_text() for id_ in ids}
    assert len(texts) == 3


# Files and folders of the same name


@pytest.mark.parametrize("to", ["yolo", "imagefolder", "fiftyone", "txt", "caption"])
def test_file_and_folder_of_the_same_name_are_kept_apart(cli, tmp_path, to):
    ids = ["a.png", "a.png/b.png", "a.txt/b.png", "a.caption/b.png", "a.txt/a.txt/c"]
    ids += ["metadata.jsonl/x.png", ".pgcli-export/b.png", "c", "c.png/d.png", "labels.json/x.png"]
    for number, order in enumerate((ids, ids[::-1])):
        rows = saved(tmp_path / f"{number}.jsonl", detected(tmp_path / f"p{number}", order))
        output = tmp_path / "exports" / f"{number}"  # the folder above is made
        code, err = exported(cli, rows, to, output)
        assert code == 0
        ending = f".{to}" if to in ("txt", "caption") else ".png"
        assert f"a{ending}/b.png is " in err
        assert sum(name.endswith(ending) for name in made(output)) == len(ids)


# Texts


LONG = ["a" * 247 + ".png", "é" * 300, "x" * 300 + ".png", ("y" * 250 + "/") * 20 + "z.png"]


@pytest.mark.parametrize("to", ["txt", "caption", "yolo"])
def test_ids_longer_than_file_names_are_shortened(cli, tmp_path, to):
    make = detected if to == "yolo" else answered
    rows = saved(tmp_path / "r.jsonl", make(tmp_path / "photos", LONG))
    err = exported(cli, rows, to, tmp_path / "out")[1]
    names = [name for name in made(tmp_path / "out") if name.endswith((".txt", ".caption"))]
    assert len(names) == 4
    assert "renamed" in err
