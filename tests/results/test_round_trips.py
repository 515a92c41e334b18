"""Rows -> export -> import -> export -> import: equal for `pgcli diff` in every format."""

import json
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.support.evaluating import evaluate
from tests.support.exporting import captioned, detected, make_images, plain, read_rows, saved
from tests.support.runs import Command

FILES = {
    "coco": "made.json",
    "labelstudio": "tasks.json",
    "parquet": "made.parquet",
    "csv": "made.csv",
    "webdataset": "made.tar",
}
IN_TABLES = ("parquet", "csv", "webdataset")


@pytest.fixture
def boxes() -> list[dict[str, Any]]:
    return plain(make_images(Path("photos")))


def again(cli: Command, rows: str, format: str, imported: str, *words: str) -> None:
    """Export the rows and import what was written."""
    output = Path(FILES[format]).with_stem(Path(imported).stem)
    exported = cli("export", rows, "--to", format, "-o", output, "--images", "photos")
    assert exported[0] == 0, exported[2]
    root = () if format in IN_TABLES else ("--images", "photos")
    code, _, err = cli("import", output, "--from", format, "-o", imported, *root, *words)
    assert code == 0, err


def is_equal(cli: Command, first: str, second: str) -> bool:
    code, out, _ = cli("diff", first, second)
    assert (code == 5) == bool(out)
    return bool(code == 0)


@pytest.mark.parametrize("format", FILES)
def test_boxes_are_equal_after_two_exports_and_imports(cli, workdir, boxes, format):
    saved(Path("rows.jsonl"), boxes)
    again(cli, "rows.jsonl", format, "first.jsonl", "--prompt", boxes[0]["prompt"])
    again(cli, "first.jsonl", format, "second.jsonl", "--prompt", boxes[0]["prompt"])
    assert is_equal(cli, "first.jsonl", "second.jsonl")
    for row, before in zip(read_rows("second.jsonl"), boxes, strict=True):
        assert (row["id"], len(row["boxes"])) == (before["id"], len(before["boxes"]))


@pytest.mark.parametrize("format", ["coco", "labelstudio", *IN_TABLES])
def test_texts_keep_their_prompt_and_their_id(cli, workdir, format):
    rows = captioned(make_images(Path("photos")), "first", "", "dritte \U0001f600")
    saved(Path("rows.jsonl"), rows)
    again(cli, "rows.jsonl", format, "first.jsonl")
    again(cli, "first.jsonl", format, "second.jsonl")
    assert is_equal(cli, "first.jsonl", "second.jsonl")
    known = [(row["id"], row["prompt"], row["answer"]) for row in read_rows("second.jsonl")]
    expected = [(row["id"], row["prompt"], row["answer"]) for row in rows]
    assert known == [
        row for row in expected if row[2] or format != "csv"
    ]  # a blank cell counts as missing


def test_tasks_of_label_studio_keep_the_prompts_of_their_rows(cli, workdir, boxes):
    boxes[0] |= {"prompt": "detect dog ; cat"}  # other rows have another prompt
    boxes[2] |= {"task": "ask", "prompt": "find the cat"}
    text = boxes[0] | {"task": "ask", "prompt": "what is it?", "answer": "a dog", "boxes": []}
    saved(Path("rows.jsonl"), [boxes[0], text, *boxes[1:]])
    again(cli, "rows.jsonl", "labelstudio", "truth.jsonl")
    known = [(row["id"], row["prompt"], len(row["boxes"])) for row in read_rows("truth.jsonl")]
    assert known == [
        (row["id"], row["prompt"], len(row["boxes"])) for row in read_rows("rows.jsonl")
    ]
    found = evaluate(cli, "rows.jsonl", "--truth", "truth.jsonl", "--metric", "exact")
    assert (found["missing"], found["surplus"]) == (0, 0)


@pytest.mark.parametrize("format", FILES)
@pytest.mark.parametrize("ending", [" ;", ";", " ; ", " ; <loc0003>"])
def test_answer_with_a_separator_at_its_end_comes_back_equal(cli, workdir, boxes, format, ending):
    found = boxes[0]["boxes"]
    places = ("<loc0085><loc0128><loc0298><loc0448>", "<loc0000><loc0000><loc1023><loc1023>")
    text = " ;  ".join(f"{at}{one['label']}" for at, one in zip(places, found, strict=True))
    saved(Path("rows.jsonl"), [boxes[0] | {"answer": text + ending}])
    again(cli, "rows.jsonl", format, "truth.jsonl")
    assert is_equal(cli, "rows.jsonl", "truth.jsonl")
    saved(Path("other.jsonl"), [boxes[0] | {"answer": text.replace("dog", "fox")}])
    assert not is_equal(cli, "rows.jsonl", "other.jsonl")


@pytest.mark.parametrize("format", IN_TABLES)
def test_rows_of_tables_and_archives_keep_scores_masks_and_prompts(cli, workdir, format):
    rows = detected(make_images(Path("photos")))
    saved(Path("rows.jsonl"), rows)
    again(cli, "rows.jsonl", format, "truth.jsonl")
    for row, before in zip(read_rows("truth.jsonl"), rows, strict=True):
        assert row["boxes"] == before["boxes"]
        assert row["prompt"] == before["prompt"]
        masks = [mask and mask["rle"] for mask in before["masks"]]
        assert [mask and mask["rle"] for mask in row["masks"]] == masks


def test_several_prompts_of_an_image_are_rows_of_it(cli, workdir, boxes):
    other = boxes[0] | {"prompt": "detect dog", "boxes": boxes[0]["boxes"][:1]}
    text = boxes[1] | {"task": "ask", "prompt": "what?", "answer": "a cat", "boxes": []}
    saved(Path("rows.jsonl"), [boxes[0], other, boxes[1], text])
    again(cli, "rows.jsonl", "parquet", "truth.jsonl")
    rows = read_rows("truth.jsonl")
    assert [row["index"] for row in rows] == [0, 0, 1, 1]
    assert [row["prompt"] for row in rows] == [
        *(boxes[0]["prompt"], "detect dog"),
        *(boxes[1]["prompt"], "what?"),
    ]
    assert [len(row["boxes"]) for row in rows] == [2, 1, 0, 0]
    assert rows[3]["answer"] == "a cat"


def test_images_in_an_imported_archive_are_named_as_missing(cli, workdir, boxes):
    """Only a run records how its images are read; unpacked beside the rows, they are found."""
    saved(Path("rows.jsonl"), boxes)
    again(cli, "rows.jsonl", "webdataset", "truth.jsonl")
    for file in Path("photos").rglob("*.*"):
        file.unlink()
    assert read_rows("truth.jsonl")[0]["image"] == "truth.tar/000000001.png"
    code, _, err = cli("export", "truth.jsonl", "--to", "webdataset", "-o", "again.tar")
    assert code == 3
    assert "truth.tar/000000001.png" in err
    with tarfile.open("truth.tar") as archive:
        archive.extractall("unpacked", filter="data")
    Path("truth.tar").unlink()
    Path("unpacked").rename("truth.tar")
    code, _, err = cli("export", "truth.jsonl", "--to", "webdataset", "-o", "found.tar")
    assert code == 0, err


def test_columns_of_other_programs_are_read_by_the_names_of_training(cli, workdir):
    make_images(Path("photos"))
    lines = [
        {
            "image": "photos/a.png",
            "prefix": "detect cat",
            "suffix": "<loc0000><loc0000><loc1023><loc1023> cat",
        },
        {"image": "photos/b.jpg", "prefix": "caption en", "suffix": "a red square"},
        {"image": "photos/sub/c.png", "prefix": "caption en"},
    ]
    Path("made.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    code, _, err = cli("import", "made.jsonl", "--from", "csv", "-o", "truth.jsonl")
    assert code == 0
    assert "1 row without an answer skipped (first: photos/sub/c.png)" in err
    rows = read_rows("truth.jsonl")
    assert [row["prompt"] for row in rows] == ["detect cat", "caption en"]
    (box,) = rows[0]["boxes"]
    assert [box[name] for name in ("xmin", "ymin", "xmax", "ymax")] == [0, 0, 64, 48]


@pytest.mark.parametrize("format", [name for name in FILES if name != "webdataset"])
def test_texts_of_regions_and_several_texts_of_an_image_come_back(cli, workdir, format):
    make_images(Path("photos"))
    image = {"id": 1, "file_name": "a.png"}
    box = {"image_id": 1, "category_id": 1, "bbox": [10, 5, 20, 10]}
    texts = ["a cat", "a tail", "the first text", "the second text"]
    regions: list[dict[str, Any]] = [box, {**box, "bbox": [1, 1, 4, 4]}, {"image_id": 1}]
    annotations = [
        {**region, "caption": text}
        for region, text in zip([*regions, regions[-1]], texts, strict=True)
    ]
    document = {
        "images": [image],
        "annotations": annotations,
        "categories": [{"id": 1, "name": "cat"}],
    }
    Path("made.json").write_text(json.dumps(document))
    cli("import", "made.json", "--from", "coco", "-o", "first.jsonl", "--images", "photos")
    again(cli, "first.jsonl", format, "second.jsonl")
    assert is_equal(cli, "first.jsonl", "second.jsonl")
    rows = [(row["answer"], row["region"]) for row in read_rows("second.jsonl")[1:]]
    assert rows == [
        ("a cat", [10, 5, 30, 15]),
        ("a tail", [1, 1, 5, 5]),
        ("the first text", None),
        ("the second text", None),
    ]


def test_a_table_may_have_a_row_for_each_box_of_an_image(cli, workdir):
    for name in ("a.png", "b.png"):
        Image.new("RGB", (64, 48)).save(name)
    lines = [
        "image,width,height,label,xmin,ymin,xmax,ymax",
        *("a.png,64,48,cat,8,4,28,14", "b.png,64,48,dog,1,1,5,5", "a.png,64,48,dog,2,2,9,9"),
        *("a.png,64,48,cat,8,4,28,14", "a.png,64,48,cat;dog,1,1,9,9", "a.png,64,48,,1,1,9,9"),
    ]
    Path("made.csv").write_text("\n".join(lines))
    code, _, err = cli("import", "made.csv", "--from", "csv", "-o", "truth.jsonl")
    assert code == 0
    assert "1 box that earlier rows of the image have too skipped (first: a.png)" in err
    assert "2 boxes with labels that no prompt can contain skipped (first: a.png)" in err
    rows = {row["id"]: row for row in read_rows("truth.jsonl")}
    boxes = {
        id_: [(box["label"], box["xmin"], box["ymax"]) for box in row["boxes"]]
        for id_, row in rows.items()
    }
    assert boxes == {"a.png": [("cat", 8, 14), ("dog", 2, 9)], "b.png": [("dog", 1, 5)]}
    assert {row["prompt"] for row in rows.values()} == {"detect cat ; dog"}


def test_two_images_with_one_id_are_an_error(cli, workdir):
    make_images(Path("photos"))
    lines = ["id,image,prompt,answer", "1,photos/a.png,q,one", "1,photos/b.jpg,r,two"]
    Path("made.csv").write_text("\n".join(lines))
    code, _, err = cli("import", "made.csv", "--from", "csv", "-o", "truth.jsonl")
    assert code == 2
    assert "two images have the id '1': " in err
    assert "photos/a.png and " in err


def test_images_in_the_cells_of_an_imported_table_are_named_as_missing(cli, workdir):
    make_images(Path("photos"))
    names = ["a.png", "b.jpg"]
    data = [Path("photos", name).read_bytes() for name in names]
    cells = [
        {"bytes": content, "path": path}
        for content, path in zip(data, [names[0], None], strict=True)
    ]
    pq.write_table(pa.table({"image": cells, "text": ["one", "two"]}), "made.parquet")
    cli("import", "made.parquet", "--from", "parquet", "-o", "truth.jsonl")
    rows = [(row["image"], row["id"]) for row in read_rows("truth.jsonl")]
    assert rows == [("made.parquet", "a.png"), ("made.parquet", "1")]
    code, _, err = cli("export", "truth.jsonl", "--to", "webdataset", "-o", "again.tar")
    assert code == 3
    assert "2 images" in err


@pytest.mark.parametrize("size", [{}, {"width": 64, "height": 48}])
def test_absent_images_are_counted_once(cli, workdir, size):
    make_images(Path("photos"))
    lines = [{"image": f"photos/{name}", "text": "x"} for name in ("gone.png", "a.png")]
    width, height = Image.open("photos/a.png").size
    sized = {"width": width, "height": height} if size else {}
    Path("made.jsonl").write_text("".join(json.dumps(line | sized) + "\n" for line in lines))
    code, _, err = cli("import", "made.jsonl", "--from", "csv", "-o", "truth.jsonl")
    images = "2 rows of 2 images" if size else "1 row of 1 image"
    assert code == (0 if size else 3)
    assert f"truth.jsonl: {images}, 0 boxes" in err
    assert "first: photos/gone.png" in err or "first skipped image: photos/gone.png" in err


def test_boxes_of_a_row_are_kept_and_its_texts_counted(cli, workdir):
    make_images(Path("photos"))
    box = {"label": "cat", "xmin": 1, "ymin": 1, "xmax": 5, "ymax": 5}
    numbers: list[dict[str, float]] = [{"score": 0.3}, {"confidence": 0.4}, {}]
    lines = [
        {
            "image": "photos/a.png",
            "boxes": [box | number for number in numbers],
            "caption": "a cat",
        },
        {"image": "photos/b.jpg", "boxes": [], "suffix": ""},
    ]
    Path("made.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    _, _, err = cli("import", "made.jsonl", "--from", "csv", "-o", "truth.jsonl")
    assert "1 text of rows with boxes skipped (first: photos/a.png)" in err
    rows = read_rows("truth.jsonl")
    assert [row["prompt"] for row in rows] == ["detect cat", "detect cat"]
    scores = [(kept["score"], kept["confidence"]) for kept in rows[0]["boxes"]]
    assert scores == [(0.3, 0.3), (1, 0.4), (1, 1)]
