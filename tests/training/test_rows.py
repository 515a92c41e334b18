"""Rows to train on: prompts and answers of every source, rows in a store, images on one side."""

import csv
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from pgcli.checkpoints.config import read_config
from pgcli.checkpoints.find import BUILTIN
from pgcli.cli.main import main
from pgcli.engine.loader import read_tokenizer
from pgcli.errors import NoInputError, UsageError
from pgcli.images import ImageLimits
from pgcli.images.files import item_bytes
from pgcli.inputs import ReadOptions
from pgcli.labels.columns import LabelColumns
from pgcli.labels.labelled_image import LabelledImage
from pgcli.records import Item
from pgcli.training.answers import tokenized
from pgcli.training.rows import RowStore, TrainingRow, TrainingRows, check_apart, split_by_image
from pgcli.training.sources import RowReader
from tests.support.awkward import (
    BOTTOM,
    LEFT,
    RIGHT,
    STORED,
    TOP,
    TURNED,
    UPRIGHT,
    photograph,
    tar_of,
)


@pytest.fixture
def store(tmp_path, monkeypatch) -> Iterator[RowStore]:
    """A store; the folder that is the current one has images a.png and b.png."""
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate("ab"):
        Image.new("RGB", (200, 100), (number, 0, 0)).save(f"{name}.png")
    opened = RowStore(tmp_path)
    yield opened
    opened.close()


def answers(
    store: RowStore, *sources: str, prompt: str | None = None, **columns: str
) -> TrainingRows:
    """The rows with prompts and answers of sources."""
    named = {name.removesuffix("_column"): column for name, column in columns.items()}
    reader = RowReader(LabelColumns(**named), prompt)
    return reader.read(sources, ReadOptions(), TrainingRows(store))


def said(rows: TrainingRows) -> list[tuple[str, str, str]]:
    return [(row.item.id, row.prompt, row.target) for row in rows]


def write_lines(name: str, *rows: dict[str, Any]) -> str:
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return name


def write_csv(name: str, *rows: dict[str, Any]) -> str:
    with open(name, "w", newline="") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows(rows)
    return name


def result_row(index: int, image: str, answer: str | None, **more: Any) -> dict[str, Any]:
    """A row of a result file."""
    names = "index id image width height task prompt answer boxes error error_message"
    known = {"index": index, "id": image, "image": image, "width": 200, "height": 100}
    known |= {"task": "detect", "prompt": "detect star", "answer": answer, "boxes": []}
    return dict.fromkeys(names.split()) | known | more


STAR = {"label": "star", "xmin": 20.0, "ymin": 10.0, "xmax": 100.0, "ymax": 50.0, "score": 0.5}
STAR_TEXT = "<loc0102><loc0102><loc0512><loc0512> star"


def test_rows_of_big_vision_and_maestro_are_read(store):
    rows = write_lines(
        "rows.jsonl",
        {"image": "a.png", "prefix": " caption en\n", "suffix": " a red wall "},
        {"image": "b.png", "prefix": "how many?", "suffix": 3},
        {"image": "b.png", "prefix": "and here?", "suffix": None},
    )
    found = answers(store, rows)
    assert said(found) == [("a.png", "caption en", "a red wall"), ("b.png", "how many?", "3")]
    assert found.skipped == {"without_target": 1}
    again = answers(store, rows)
    assert again.digest == found.digest
    assert (
        again.digest != answers(store, rows, prompt_column="suffix", answer_column="suffix").digest
    )


def test_empty_answer_counts_but_an_empty_csv_cell_does_not(store):
    empty = {"image": "a.png", "prefix": "detect cat", "suffix": " "}
    found = answers(store, write_lines("rows.jsonl", empty, empty | {"suffix": "?"}))
    assert said(found) == [("a.png", "detect cat", ""), ("a.png", "detect cat", "?")]
    found = answers(store, write_csv("rows.csv", empty, empty | {"suffix": "?"}))
    assert said(found) == [("a.png", "detect cat", "?")]
    assert found.skipped == {"without_target": 1}


def test_columns_can_be_named_and_one_prompt_serves_all_rows(store):
    table = write_csv("rows.csv", {"image": "a.png", "text": "a wall", "thing": "wall"})
    found = answers(store, table, answer_column="text", prompt="is there a {thing}?")
    assert said(found) == [("a.png", "is there a wall?", "a wall")]
    with pytest.raises(NoInputError, match="an image with a prompt and 'text'") as problem:
        answers(store, table, answer_column="text")
    assert '--prompt "caption en"' in problem.value.hint
    with pytest.raises(UsageError, match="no column 'caption'"):
        answers(store, table, answer_column="caption", prompt="caption en")
    with_prompts = write_lines("own.jsonl", {"image": "a.png", "prompt": "ocr", "answer": "A"})
    with pytest.raises(UsageError, match="--prompt conflicts"):
        answers(store, with_prompts, prompt="caption en")


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_result_file_is_a_training_source(store, kind):
    Path("photos").mkdir()
    Path("a.png").rename("photos/a.png")
    rows = [
        result_row(0, "photos/a.png", "<loc0001><loc0001><loc0009><loc0009> star"),
        result_row(0, "photos/a.png", None, prompt="detect sun", boxes=[STAR]),
        result_row(1, "photos/gone.png", None, error="missing", error_message="It is missing."),
        result_row(2, "b.png", "", prompt="detect moon"),
    ]
    name = write_lines("runs/rows.jsonl", *rows)
    if kind == "parquet":
        name = "runs/rows.parquet"
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), name)
    found = answers(store, name)
    assert said(found) == [
        ("photos/a.png", "detect star", "<loc0001><loc0001><loc0009><loc0009> star"),
        ("photos/a.png", "detect sun", STAR_TEXT),
        ("b.png", "detect moon", ""),  # nothing was found, which is an answer
    ]
    assert found.skipped == {"with_error": 1}
    assert found[0].item.path == "photos/a.png"


def test_answers_of_a_run_are_training_targets(store):
    images = [{"image": {"bytes": Path(f"{name}.png").read_bytes()}, "n": name} for name in "ab"]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(images), "photos.parquet")
    Path("runs").mkdir()
    run = "caption photos.parquet --model demo --max-new-tokens 2 --workers 0 -q -o runs/rows.jsonl"
    assert main(run.split()) == 0
    found = answers(store, "runs/rows.jsonl")
    assert [row.prompt for row in found] == ["caption en"] * 2
    assert store.item(found[1]).data == Path("b.png").read_bytes()


def test_archives_and_folders_with_texts_are_read(store):
    Path("a.txt").write_text("a red wall\n")
    Path("b.caption").write_text("a green wall\n")
    found = answers(store, ".", prompt="caption en")
    expected = [("a.png", "caption en", "a red wall"), ("b.png", "caption en", "a green wall")]
    assert said(found) == expected
    members = {"0.png": Path("a.png").read_bytes(), "0.txt": b"a red wall"}
    members |= {"1.png": Path("b.png").read_bytes(),
                "1.json": b'{"prompt": "ocr", "answer": "B", "boxes": []}'}  # fmt: skip
    Path("shard.tar").write_bytes(tar_of(members.items()))
    found = answers(store, "shard.tar")
    assert said(found) == [("shard.tar/1.png", "ocr", "B")]
    assert item_bytes(store.item(found[0]), ImageLimits()) == members["1.png"]
    assert found.skipped == {"without_target": 1}
    Path("b.caption").unlink()
    assert answers(store, ".", prompt="caption en").skipped == {"without_target": 1}


def test_image_is_trained_with_the_text_that_is_named_after_it(store):
    """As `--sidecar` and `export --to txt` name the texts of images with one stem."""
    shutil.copy("a.png", "a.jpg")
    Path("a.txt").write_text("a jpeg\n")
    Path("a.png.txt").write_text("a png\n")
    Path("b.png.caption").write_text("a green wall\n")
    found = answers(store, ".", prompt="caption en")
    targets = {row.item.id: row.target for row in found}
    assert targets == {"a.jpg": "a jpeg", "a.png": "a png", "b.png": "a green wall"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a red wall".encode("utf-16"), "is not UTF-8"),
        ("a red wall".encode("utf-16-le"), "contains a NUL byte"),
        (b"x" * (2**20 + 1), "is longer than 1 MiB"),
    ],
)
def test_unreadable_text_beside_an_image_skips_its_row(store, text, problem):
    Path("a.txt").write_bytes(text)
    Path("b.txt").write_text("a green wall")
    found = answers(store, ".", prompt="caption en")
    assert said(found) == [("b.png", "caption en", "a green wall")]
    assert len(found.faults) == 1
    assert found.faults[0].startswith("a.png: ./a.txt ")
    assert problem in found.faults[0]


@pytest.mark.parametrize("orientation", TURNED)
def test_boxes_of_the_stored_size_are_trained_on_upright(store, orientation):
    photograph("a.png", orientation)
    sides = zip(("xmin", "ymin", "xmax", "ymax"), (LEFT, TOP, RIGHT, BOTTOM), strict=True)
    drawn = {"label": "cat"} | dict(sides)
    stored = {"image": "a.png", "prompt": "detect cat", "width": STORED[0], "height": STORED[1]}
    stored["boxes"] = [drawn]
    left, top, right, bottom = TURNED[orientation]
    width, height = UPRIGHT
    sides = ((top, height), (left, width), (bottom, height), (right, width))
    upright = "".join(f"<loc{round(side / most * 1023):04}>" for side, most in sides) + " cat"
    rows = write_lines("rows.jsonl", stored)
    assert said(answers(store, rows)) == [("a.png", "detect cat", upright)]
    masks = [{"codes": [0] * 16, "rle": None}]
    for more in ({"masks": masks}, {"answer": "<loc0085><loc0128><loc0298><loc0448> cat"}):
        with pytest.raises(NoInputError, match="Its tokens refer to the image before its EXIF"):
            answers(store, write_lines("rows.jsonl", stored | more))


def test_invalid_boxes_skip_their_row(store):
    row = {"image": "a.png", "prefix": "detect star"}
    right = row | {"boxes": [STAR]}
    bad = {
        "boxes[0] is not an object with a label": [[1, 2, 3, 4]],
        "has no area: 20, 10, 20, 50": [STAR, STAR | {"xmax": 20.0}],
        "is outside of its image of 200 x 100: 20, 10, 400, 50": [STAR | {"xmax": 400.0}],
    }
    rows = [row | {"id": text, "boxes": boxes} for text, boxes in bad.items()]
    sized = right | {"width": 100, "height": 100}
    found = answers(store, write_lines("rows.jsonl", right, *rows, sized))
    assert said(found) == [("a.png", "detect star", STAR_TEXT)]
    other_size = "100 x 100 is stated, and the image has 200 x 100"
    for text, fault in zip([*bad, other_size], found.faults, strict=True):
        assert text in fault
    table = row | {"boxes": json.dumps([STAR]), "width": "200", "height": "100"}
    assert answers(store, write_csv("rows.csv", table))[0].target == STAR_TEXT


def test_several_answers_are_one_row_with_the_most_frequent(store):
    row = {"image": "a.png", "question_id": 3, "prompt": "how many?", "answer": "2"}
    found = answers(store, write_lines("rows.jsonl", row | {"answers": ["3", "two", "two"]}))
    assert found[0].truth is not None
    assert (found[0].target, found[0].truth.answers) == ("two", ("3", "two", "two"))
    objects = [{"answer": "two"}, {"answer": "two"}, {"answer": "3"}]
    found = answers(store, write_lines("rows.jsonl", row | {"answers": objects}))
    assert found[0].target == "two"
    assert answers(store, write_lines("rows.jsonl", row | {"suffix": "one"}))[0].target == "one"


def test_class_integers_become_the_names_in_the_schema(store):
    feature = {"_type": "ClassLabel", "names": ["cat", "dog"]}
    metadata = {"huggingface": json.dumps({"info": {"features": {"label": feature}}})}
    rows = [{"image": name, "label": label} for name, label in (("a.png", 1), ("b.png", -1))]
    table = pyarrow.Table.from_pylist(rows).replace_schema_metadata(metadata)
    pyarrow.parquet.write_table(table, "rows.parquet")
    labels = RowReader(label="label").read(["rows.parquet"], ReadOptions(), TrainingRows(store))
    assert [row.target for row in labels] == ["dog"]
    assert answers(store, "rows.parquet", prompt="what is it?")[0].target == "dog"


def files(store: RowStore, *names: str) -> TrainingRows:
    rows = TrainingRows(store)
    for number, name in enumerate(names):
        rows.add(Item(number, name, name, name), LabelledImage(answers=("x",)))
    return rows


def test_no_image_is_on_both_sides_of_the_split(store):
    for number in range(20):
        Image.new("RGB", (20, 20), (number, 0, 0)).save(f"{number}.png")
        Path(f"copy-{number}.png").write_bytes(Path(f"{number}.png").read_bytes())
    names = [f"{prefix}{number}.png" for prefix in ("", "copy-", "") for number in range(20)]
    rows = files(store, *names)
    rows.add(
        Item(60, "bytes", "table", data=Path("3.png").read_bytes()), LabelledImage(answers=("x",))
    )
    train, held_out = split_by_image(rows, 0.1, seed=0)
    assert len(train) + len(held_out) == 61
    assert len(held_out) in (6, 7)

    def contents(found: TrainingRows) -> set[bytes]:
        items = map(store.item, found)
        return {item.data or Path(str(item.path)).read_bytes() for item in items}

    assert not contents(train) & contents(held_out)
    assert said(split_by_image(rows, 0.1, seed=0)[1]) == said(held_out)
    assert said(split_by_image(rows, 0.1, seed=1)[1]) != said(held_out)
    with pytest.raises(UsageError, match="leaves no image to train on"):
        split_by_image(files(store, "0.png", "copy-0.png"), 0.5, seed=0)


def test_copies_of_trained_images_in_eval_are_an_error(store):
    Path("copy.png").write_bytes(Path("a.png").read_bytes())
    check_apart(files(store, "a.png", "copy.png"), files(store, "b.png", "gone.png"))
    with pytest.raises(UsageError, match=r"1 image in both .* copy.png \(a.png in") as problem:
        check_apart(files(store, "b.png", "a.png"), files(store, "copy.png"))
    assert "--eval-fraction" in problem.value.hint
    with pytest.raises(UsageError, match=r"2 images in both .* a.png; b.png"):
        check_apart(files(store, "a.png", "b.png"), files(store, "a.png", "b.png"))


def test_regions_of_rows_are_location_tokens_of_prompts(store):
    row = {"image": "a.png", "prefix": "caption", "suffix": "a wall", "region": [20, 10, 200, 50]}
    found = answers(store, write_lines("rows.jsonl", row))
    assert found[0].prompt == "caption <loc0102><loc0102><loc0512><loc1023>"
    outside = row | {"region": [300, 10, 400, 50]}
    found = answers(store, write_lines("rows.jsonl", row, outside))
    assert found.faults == ["a.png: The region is outside of its image."]


def test_regions_have_the_same_prompt_in_training_and_inference():
    tokenizer = read_tokenizer(BUILTIN, read_config(BUILTIN))
    row = TrainingRow(
        Item(0, "", ""), "a star", "", prompt="caption <loc0001><loc0001><loc0009><loc0009>"
    )
    expected = tokenizer.encode_prompt("caption", (1, 1, 9, 9))
    assert tokenized(row, tokenizer, 1).prefix == expected
