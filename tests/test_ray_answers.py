"""`pgcli.ray.Answers`: rows one to one, errors in rows, and nothing raised. Needs no Ray."""

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pgcli.errors import ModelUnavailable, UsageError
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
    assert [row["id"] for row in rows] == ["0", str(file), "a.png", "3", "missing.png"]
    assert [row["index"] for row in rows] == [row["note"] for row in rows] == list(range(5))
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


def test_missing_ids_and_images_in_texts_are_named_by_their_positions(captions):
    texts = objects(base64.b64encode(FILE).decode(), "data:image/png;base64,!!", "missing.png")
    for ids in (np.array([1, np.nan, np.nan]), objects("1.0", None, "")):
        table = captions({"image": texts, "id": ids, "note": np.arange(3)})
        assert table["error"].to_pylist() == [None, "decode_failed", "missing"]
        assert table["id"].to_pylist() == ["1.0", "1", "missing.png"]


def test_what_fails_is_an_error_of_its_row(captions, monkeypatch):
    rows = captions({"image": objects(FILE, None, 3.5, FILE), "note": np.arange(4)}).to_pylist()
    assert [row["error"] for row in rows] == [
        None,
        "unsupported_format",
        "unsupported_format",
        None,
    ]
    assert [row["id"] for row in rows] == ["0", "1", "2", "3"]

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA error: device-side assert")

    monkeypatch.setattr(captions._engine, "caption", broken)
    rows = captions({"image": objects(FILE, FILE), "note": np.arange(2)}).to_pylist()
    assert [row["error"] for row in rows] == ["worker_crashed"] * 2
    assert rows[1]["error_message"] == "RuntimeError: CUDA error: device-side assert"


def test_batch_without_a_column_that_it_needs_is_refused(captions):
    with pytest.raises(UsageError, match="no column 'image', only 'picture', 'note'"):
        captions({"picture": objects(FILE), "note": np.arange(1)})
    with pytest.raises(UsageError, match="no column 'note', only 'image'"):
        captions({"image": objects(FILE)})


def test_invalid_settings_are_raised_before_the_model_is_loaded():
    with pytest.raises(UsageError, match="is not a task"):
        Answers("describe")
    with pytest.raises(UsageError, match="one row for each image"):
        Answers("ask", prompt=["a?", "b?"])
    with pytest.raises(ModelUnavailable):
        Answers(model="nowhere/nothing")
