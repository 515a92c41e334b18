"""apply: the edits of a page of results become rows."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pgcli
from pgcli.records import Mask, Rle
from pgcli.rows import answer_digest
from tests.support.exporting import answer, box, read_rows, row, save, saved
from tests.support.runs import Command

ROOT = Path(__file__).parents[2]


def rows() -> list[dict[str, Any]]:
    boxes = (box("cat", 64, 48, 320, 240), box("dog", 0, 0, 640, 480), box("cat", 1, 2, 3, 4))
    masks = (Mask((1,) * 16, Rle((480, 640), "PPb0")), None, Mask((2,) * 16))
    return [
        *(row(n, answer=f"text {n}") for n in range(3)),
        row(3, task="segment", prompt="segment cat ; dog", boxes=boxes, masks=masks),
        row(4, error="missing"),
    ]


def edit(of: dict[str, Any], state: str = "accepted", **changes: Any) -> dict[str, Any]:
    key = {name: of[name] for name in ("index", "id", "prompt")}
    return key | {"digest": answer_digest(of), "state": state} | changes


def edited(label: str, row: dict[str, Any], source: int, **corners: float) -> dict[str, Any]:
    """A box of a row, with another label or corners."""
    own = {name: round(row["boxes"][source][name], 1) for name in ("xmin", "ymin", "xmax", "ymax")}
    return {"label": label, **own, **corners, "source": source}


def write_edits(*edits: Any, **changes: Any) -> None:
    document = {"format": "pgcli edits", "version": 1, "edits": list(edits)} | changes
    Path("rows.edits.json").write_text(json.dumps(document), encoding="utf-8")


def apply(cli: Command, *words: str, output: str = "new.jsonl") -> tuple[int, str]:
    code, _, err = cli("apply", "rows.edits.json", "rows.jsonl", "-o", output, *words)
    return code, err


def test_boxes_keep_their_masks_and_codes(cli):
    given = rows()
    saved(Path("rows.jsonl"), given)
    write_edits(edit(given[3], boxes=[edited("lion", given[3], 0), edited("dog", given[3], 1)]))
    assert apply(cli)[0] == 0
    row = read_rows("new.jsonl")[3]
    assert row["boxes"][0] == given[3]["boxes"][0] | {"label": "lion"}
    assert row["masks"] == given[3]["masks"][:2]
    codes = "<seg001>" * 16
    lion, dog = "<loc0102>" * 2 + "<loc0512>" * 2, "<loc0000>" * 2 + "<loc1023>" * 2
    assert row["answer"] == f"{lion}{codes} lion ; {dog} dog"


def test_boxes_are_moved_and_drawn(cli):
    given = rows()
    saved(Path("rows.jsonl"), given)
    moved = edited("cat", given[3], 0, xmin=80, xmax=9999)
    write_edits(edit(given[3], boxes=[moved, DRAWN]), edit(given[0], boxes=[DRAWN]))
    assert apply(cli)[0] == 0
    first, *_, fourth, _ = read_rows("new.jsonl")
    own, drawn = fourth["boxes"]
    assert own == given[3]["boxes"][0] | {"xmin": 80.0, "xmax": 640.0}  # clipped to the image
    assert drawn == DRAWN | {"score": 1.0, "confidence": 1.0}
    assert fourth["masks"] == [given[3]["masks"][0] | {"rle": None}, None]
    assert fourth["answer"].endswith("<loc0004><loc0002><loc0085><loc0048> a")
    assert [box["label"] for box in first["boxes"]] == ["a"]


def test_edits_of_changed_or_missing_rows_are_named(cli):
    given = rows()
    write_edits(edit(given[0]), edit(given[1]), edit(given[2] | {"id": "\x1b[2Jgone"}))
    given[1]["answer"] = "another"
    saved(Path("rows.jsonl"), given)
    code, err = apply(cli)
    assert code == 3
    assert "not applied, the answer has changed: edit 2 ('1.png', 'what?')" in err
    assert "not applied, the row is missing: edit 3 (" in err
    assert "\x1b" not in err
    assert len(read_rows("new.jsonl")) == 5
    given[0]["answer"] = "another"
    saved(Path("rows.jsonl"), given)
    code, err = apply(cli, output="none.jsonl")
    assert (code, "none of the edits in" in err, "hint: " in err) == (2, True, True)
    assert not Path("none.jsonl").exists()


def test_kept_columns_and_numbers_of_parquet_match_the_digest(cli):
    for name in ("rows.parquet", "rows.jsonl"):
        save(name, answer(boxes=(box("cat", 1, 2, 3, 4),), kept={"sku": 7}), keep=("sku",))
    one = json.loads(Path("rows.jsonl").read_text())
    write_edits(edit(one, boxes=[edited("dog", one, 0)]))
    assert cli("apply rows.edits.json rows.parquet -o new.parquet")[0] == 0
    (corrected,) = pgcli.read("new.parquet")
    assert (corrected.boxes[0].label, corrected.kept) == ("dog", {"sku": 7})


DRAWN = {"label": "a", "xmin": 1, "ymin": 2, "xmax": 30, "ymax": 40}
WRONG: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "newer": (lambda one: write_edits(one, version=2), "has version 2"),
    "no object": (lambda one: write_edits(7), "edit 1 is not an object"),
    "a key": (lambda one: write_edits(one | {"labels": {}}), "unknown key, 'labels'"),
    "a state": (lambda one: write_edits(one | {"state": "maybe"}), "state is neither"),
    "an index": (lambda one: write_edits(one | {"index": -1}), "index is not a whole number"),
    "a digest": (lambda one: write_edits(one | {"digest": "1"}), "digest does not have 16"),
    "an answer": (lambda one: write_edits(one | {"answer": ["a"]}), "answer is not text"),
    "a box": (lambda one: write_edits(one | {"boxes": [DRAWN | {"xmin": "1"}]}), "xmin is not a n"),
    "outside": (
        lambda one: write_edits(one | {"boxes": [DRAWN | {"xmin": 9e9}]}),
        "no area in the image",
    ),
    "a label": (lambda one: write_edits(one | {"boxes": [DRAWN | {"label": "a;"}]}), "line break"),
    "no box": (lambda one: write_edits(one | {"boxes": [DRAWN | {"source": 9}]}), "which the row"),
    "twice": (lambda one: write_edits(one, one), "the same row as edit 1"),
    "cut": (lambda one: Path("rows.edits.json").write_text('{"edits'), "is not valid JSON"),
    "deep": (lambda one: Path("rows.edits.json").write_text("[" * 100000), "nested too deeply"),
    "a folder": (lambda one: Path("rows.edits.json").mkdir(), "not a regular file"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_invalid_edits_are_errors_and_nothing_is_written(cli, fault):
    given = rows()
    saved(Path("rows.jsonl"), given)
    write, message = WRONG[fault]
    write(edit(given[0]))
    code, err = apply(cli)
    assert (code, message in err, "hint: " in err) == (2, True, True), err
    assert not Path("new.jsonl").exists()


def test_large_edits_and_texts_for_rows_with_boxes_are_errors(cli, monkeypatch):
    given = rows()
    saved(Path("rows.jsonl"), given)
    write_edits(edit(given[3], answer="text"))
    code, err = apply(cli)
    assert (code, "changes the answer of a row with boxes" in err) == (2, True)
    monkeypatch.setattr("pgcli.results.edits.MAX_BYTES", 100)
    code, err = apply(cli)
    assert (code, "is larger than" in err) == (2, True)


def test_edits_of_the_documentation_are_valid():
    jsonschema = pytest.importorskip("jsonschema", reason="a development dependency")
    schema = json.loads(
        (ROOT / "docs" / "reference" / "edits.schema.json").read_text(encoding="utf-8")
    )
    jsonschema.Draft202012Validator.check_schema(schema)
    given = rows()
    edits = [
        edit(given[0], answer="a"),
        edit(given[3], boxes=[DRAWN, DRAWN | {"source": 0}], file="f"),
    ]
    document = {"format": "pgcli edits", "version": 1, "edits": edits}
    jsonschema.validate(document, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document | {"edits": [edits[0] | {"more": 1}]}, schema)
