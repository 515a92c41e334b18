"""`pgcli.ray.Answers` returns one row per image, with errors in rows. Needs no Ray."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pgcli.errors import UsageError
from pgcli.ray import Answers
from tests.support.awkward import drawing, encoded

FILE = encoded(drawing(40, 30), "png")


def make(tiny: Path, task: str = "caption", **options: Any) -> Answers:
    return Answers(task, model=tiny, device="cpu", max_new_tokens=4, **options)


@pytest.fixture(scope="module")
def captions(tiny) -> Answers:
    return make(tiny, keep=["note"])


def objects(*values: Any) -> np.ndarray:
    """A column as Ray gives it."""
    found = np.empty(len(values), object)
    found[:] = values
    return found


def test_a_batch_has_a_row_for_each_image_in_order(captions, tmp_path):
    file = tmp_path / "photo.png"
    file.write_bytes(FILE)
    images = objects(FILE, str(file), {"bytes": FILE, "path": "a.png"}, b"no image", "missing.png")
    table = captions({"image": images, "note": np.arange(5)})
    rows = table.to_pylist()
    assert [row["error"] for row in rows] == [None, None, None, "not_an_image", "missing"]
    assert [row["id"] for row in rows] == [None, str(file), "a.png", None, "missing.png"]
    assert [row["index"] for row in rows] == [None] * 5, "a batch does not know its place"
    assert [row["note"] for row in rows] == list(range(5))
    assert rows[0]["answer"] == rows[1]["answer"] == rows[2]["answer"]
    assert (rows[0]["width"], rows[0]["height"]) == (40, 30)


def test_batches_have_equal_schemas_also_where_they_are_empty(captions):
    one = captions({"image": np.zeros((2, 8, 8, 3), np.uint8), "note": np.arange(2)})
    none = captions({"image": objects(), "note": np.arange(0)})
    assert one.drop(["note"]).schema == none.drop(["note"]).schema
    assert (one.num_rows, none.num_rows) == (2, 0)
    assert one["error"].to_pylist() == [None, None]


def test_rows_of_a_batch_have_its_ids_and_prompts(tiny):
    batch = {"image": objects(FILE, FILE), "id": objects("x", "x"), "prompt": objects("a?", "b?")}
    rows = make(tiny, "ask")(batch).to_pylist()
    assert [(row["id"], row["prompt"]) for row in rows] == [("x", "a?"), ("x", "b?")]
    given = make(tiny, "ask", prompt="is it a {kind}?")
    rows = given({**batch, "kind": objects("cat", "dog")}).to_pylist()
    assert [row["prompt"] for row in rows] == ["is it a cat?", "is it a dog?"]


def test_a_column_of_indices_is_kept_and_names_images_without_a_path(captions):
    batch = {"image": objects(FILE, FILE, "missing.png"), "note": np.arange(3)}
    table = captions({**batch, "index": np.array([7, 9, 8])})
    assert table["index"].to_pylist() == [7, 9, 8]
    assert table["id"].to_pylist() == table["image"].to_pylist() == ["7", "9", "missing.png"]
    assert str(table.schema.field("index").type) == "int64"


def test_all_other_columns_are_passed_on(tiny):
    batch = {"image": objects(FILE, b"bad"), "label": objects("a", "b"), "split": np.arange(2)}
    table = make(tiny, keep="*")({**batch, "id": objects("x", "y")})
    assert table.column_names[-2:] == ["label", "split"]
    assert (table["label"].to_pylist(), table["split"].to_pylist()) == (["a", "b"], [0, 1])
    assert table["id"].to_pylist() == ["x", "y"]


def test_failure_is_an_error_of_its_row(captions, monkeypatch):
    rows = captions({"image": objects(FILE, None, 3.5, FILE), "note": np.arange(4)}).to_pylist()
    assert [row["error"] for row in rows] == [
        None,
        "unsupported_format",
        "unsupported_format",
        None,
    ]
    assert [row["id"] for row in rows] == [None] * 4

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA error: device-side assert")

    monkeypatch.setattr(captions._engine, "answer", broken)
    rows = captions({"image": objects(FILE, FILE), "note": np.arange(2)}).to_pylist()
    assert [row["error"] for row in rows] == ["worker_crashed"] * 2
    assert rows[1]["error_message"] == "RuntimeError: CUDA error: device-side assert"


def test_batch_without_a_column_that_it_needs_is_rejected(captions):
    with pytest.raises(UsageError, match="no column 'image', only 'picture', 'note'"):
        captions({"picture": objects(FILE), "note": np.arange(1)})
    with pytest.raises(UsageError, match="no column 'note', only 'image'"):
        captions({"image": objects(FILE)})


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        ("describe", {}, "is not a task"),
        ("ask", {"prompt": ["a?", "b?"]}, "several rows for each image"),
        ("detect", {"object": ["a", "b"], "each": True}, "several rows for each image"),
        ("ask", {"prompt": "{prompt}!"}, "uses the column 'prompt'"),
        ("ask", {"promt": "a?"}, "there is no option promt"),
        ("caption", {"max_new_tokens": 0}, "max_new_tokens must be at least 1, not 0"),
        ("caption", {"region": "left"}, "region must "),
        ("caption", {"keep": "label"}, "keep must be a list of names or"),
        ("caption", {"keep": ["answer"]}, "a column of the answers"),
        ("detect", {}, "object is missing"),
        ("score", {}, "no text to score"),
    ],
)
def test_mistakes_in_options_are_raised_before_the_model_is_loaded(task, options, message):
    with pytest.raises(UsageError, match=message):
        Answers(task, model="nowhere/nothing", **options)


def test_abilities_that_the_model_lacks_raise_before_the_first_batch(tiny):
    with pytest.raises(UsageError, match="which cannot score"):
        Answers("score", text=["a cat"], model=tiny, device="cpu")
    with pytest.raises(UsageError, match="no room for a prompt"):
        Answers("caption", model=tiny, device="cpu", max_new_tokens=100_000)


def test_columns_that_the_options_need_are_raised(tiny):
    batch = {"image": objects(FILE), "id": objects("x")}
    with pytest.raises(UsageError, match="no column 'prompt'"):
        make(tiny, "ask")(batch)
    with pytest.raises(UsageError, match="no column 'kind'"):
        make(tiny, "ask", prompt="is it a {kind}?")(batch)
    with pytest.raises(UsageError, match="no column 'options'"):
        make(tiny, "ask", prompt="which?", choices_column="options")(batch)
    given = make(tiny, region=(0, 0, 9, 9))
    with pytest.raises(UsageError, match="the batch has a column of regions"):
        given({**batch, "region": objects((0, 0, 5, 5))})
    assert given({**batch, "region": objects(None)}).to_pylist()[0]["error"] is None
    row = make(tiny, "ask", prompt="is it {id}?")(batch).to_pylist()[0]
    assert (row["prompt"], row["id"], row["error"]) == ("is it x?", "x", None)
