"""Rows of the truth with the same image and prompt are one truth: all answers, all boxes."""

from pathlib import Path
from typing import Any

import numpy
import pytest

from pgcli.evaluation.join import join, read_truth
from pgcli.evaluation.measures import JoinedRow
from pgcli.rle import encode_mask
from tests.support.evaluating import answers, evaluate, refused, save, write
from tests.support.exporting import box, row

pytestmark = pytest.mark.usefixtures("workdir")

WIDTH, HEIGHT = 64, 48
FIRST, SECOND = (8, 4, 28, 14), (8, 20, 28, 30)  # pixels


def tokens(corners: tuple[int, int, int, int], label: str = "cat", codes: str = "") -> str:
    left, top, right, bottom = corners
    sides = ((top, HEIGHT), (left, WIDTH), (bottom, HEIGHT), (right, WIDTH))
    locations = "".join(f"<loc{round(side / size * 1023):04d}>" for side, size in sides)
    return f"{locations}{codes} {label}"


def pixels(corners: tuple[int, int, int, int], label: str = "cat") -> dict[str, Any]:
    return {"label": label, **dict(zip(("xmin", "ymin", "xmax", "ymax"), corners, strict=True))}


def found(*boxes: Any, prompt: str = "detect cat", task: Any = "detect", **changes: Any) -> str:
    """A result file with one row, whose answer has the boxes."""
    known = {"width": WIDTH, "height": HEIGHT, "id": "a.png", "task": task, "prompt": prompt}
    return write("rows.jsonl", [row(0, boxes=boxes, **known | changes)])


def joined(truth: str) -> JoinedRow:
    return join("rows.jsonl", read_truth(truth)).rows[0]


CODES = "".join(f"<seg{n:03d}>" for n in range(16))


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize(
    "rows",
    [
        [{"suffix": tokens(FIRST)}, {"suffix": ""}, {"suffix": tokens(SECOND)}],
        [{"boxes": [pixels(FIRST)]}, {"boxes": [pixels(SECOND)]}],
        [{"suffix": tokens(c, codes=CODES)} for c in (FIRST, SECOND, FIRST)],
    ],
    ids=["tokens", "boxes", "codes of masks"],
)
def test_boxes_of_all_rows_are_true_in_every_kind_of_manifest(kind, rows):
    named = [{"image": "a.png", "prefix": "detect cat", **one} for one in rows]
    found()
    true = sorted(joined(save(f"truth.{kind}", named)).true_boxes, key=lambda one: one.ymin)
    assert [one.label for one in true] == ["cat", "cat"]
    corners = [(one.xmin, one.ymin, one.xmax, one.ymax) for one in true]
    assert numpy.allclose(corners, [FIRST, SECOND], rtol=0, atol=0.04)


@pytest.mark.parametrize("name", ["suffix", "boxes"])
def test_boxes_of_all_rows_are_measured(cli, name):
    texts = {"suffix": tokens, "boxes": lambda corners: [pixels(corners)]}
    rows = [{"image": "a.png", name: texts[name](corners)} for corners in (FIRST, SECOND)]
    truth = write("truth.jsonl", rows)
    measured = evaluate(cli, found(box("cat", *FIRST), box("cat", *SECOND)), "--truth", truth)
    assert [measured["metrics"][one]["value"] for one in ("recall@0.5", "f1@0.5")] == [1.0, 1.0]
    assert measured["metrics"]["ap50"]["value"] == pytest.approx(1.0)
    half = evaluate(cli, found(box("cat", *FIRST)), "--truth", truth)["metrics"]
    assert (half["recall@0.5"]["value"], half["precision@0.5"]["value"]) == (0.5, 1.0)


def test_labels_come_from_the_boxes_of_rows(cli):
    rows = [{"suffix": tokens(FIRST, "a")}, {"suffix": tokens(SECOND, "b")}]
    known = {"id": "a.png", "prefix": "detect a ; b"}
    truth = write("truth.jsonl", [known | one for one in rows])
    results = found(box("a", *FIRST), box("b", *SECOND), prompt="detect a ; b")
    assert evaluate(cli, results, "--truth", truth)["metrics"]["f1@0.5"]["value"] == 1.0
    swapped = found(box("b", *FIRST), box("a", *SECOND), prompt="detect a ; b")
    assert evaluate(cli, swapped, "--truth", truth)["metrics"]["f1@0.5"]["value"] == 0.0


def test_masks_of_rows_stay_with_their_boxes():
    found()
    runs = encode_mask(numpy.ones((HEIGHT, WIDTH), bool))
    mask = {"size": [HEIGHT, WIDTH], "counts": runs.counts}
    rows = [{"boxes": [pixels(FIRST)]}, {"boxes": [pixels(SECOND)], "masks": [mask]}]
    truth = joined(write("truth.jsonl", [{"id": "a.png"} | one for one in rows])).truth
    assert truth is not None
    assert truth.masks is not None
    assert [mask is not None for mask in truth.masks] == [False, True]


def test_box_that_two_rows_have_counts_once(cli):
    results = found(box("cat", *FIRST))
    for name, one in (("boxes", [pixels(FIRST)]), ("suffix", tokens(FIRST))):
        truth = write("truth.jsonl", [{"id": "a.png", name: one}] * 3)
        assert evaluate(cli, results, "--truth", truth)["metrics"]["f1@0.5"]["value"] == 1.0


def test_empty_answers_to_a_prompt_for_boxes_are_no_boxes(cli):
    known = {"id": "a.png", "prefix": "detect cat", "suffix": ""}
    truth = write("truth.jsonl", [known, known])
    assert joined_boxes(cli, found(), truth) is None  # nothing to find, and nothing found
    assert joined_boxes(cli, found(box("cat", *FIRST)), truth) == 0.0
    text = write("truth.jsonl", [known | {"suffix": "no cat"}])
    assert "needs boxes, and the truth has none" in refused(cli, found(), "--truth", text)


def joined_boxes(cli: Any, results: str, truth: str) -> float | None:
    value: float | None = evaluate(cli, results, "--truth", truth)["metrics"]["f1@0.5"]["value"]
    return value


def test_missing_row_has_the_boxes_of_all_rows(cli):
    rows = [{"id": name, "prefix": "detect cat", "suffix": tokens(c)}
            for name in ("a.png", "b.png") for c in (FIRST, SECOND)]  # fmt: skip
    truth = write("truth.jsonl", rows)
    results = found(box("cat", *FIRST), box("cat", *SECOND))
    measured = evaluate(cli, results, "--truth", truth)
    assert (measured["missing"], measured["metrics"]["recall@0.5"]["value"]) == (1, 0.5)


def test_tokens_need_the_size_of_the_image(cli):
    truth = write("truth.jsonl", [{"id": "a.png", "suffix": tokens(FIRST)}])
    unsized = found(box("cat", *FIRST), width=None, height=None)
    assert "its row has no width and height" in refused(cli, unsized, "--truth", truth)


def test_captions_of_rows_are_several_true_answers(cli):
    """VQA counts equal answers, and CIDEr all captions."""
    rows = write("rows.jsonl", answers(("a", "red")))
    known = {"id": "a", "prompt": "what?"}
    truth = write("truth.jsonl", [known | {"answer": t} for t in ["red"] * 9 + ["blue"]])
    assert evaluate(cli, rows, "--truth", truth)["metrics"] == {
        "vqa": {"value": 1.0, "low": 1.0, "high": 1.0, "rows": 1}
    }
    assert "boxes" not in cli("eval", rows, "--truth", truth)[2]


def test_column_that_rows_of_one_prompt_disagree_on_is_no_group(cli):
    lines = ["id,label,xmin,ymin,xmax,ymax,split"]
    lines += [
        f"a.png,{label},{','.join(map(str, c))},1" for label, c in (("cat", FIRST), ("dog", SECOND))
    ]
    Path("truth.csv").write_text("\n".join(lines) + "\n")
    results = found(box("cat", *FIRST), box("dog", *SECOND), prompt="detect cat ; dog")
    words = (results, "--truth", "truth.csv", "--by")
    assert "different values: cat, dog" in refused(cli, *words, "label")
    assert list(evaluate(cli, *words, "split")["groups"]) == ["1"]


@pytest.mark.parametrize(
    ("prompt", "truth", "metric"),
    [
        ("detect cat", {"boxes": [pixels(FIRST)]}, "ap"),
        ("detect cat", {"suffix": tokens(FIRST)}, "ap"),
        ("segment cat", {"suffix": tokens(FIRST)}, "ap"),
        ("detect cat", {"suffix": "no"}, "accuracy"),
        ("detect what is wrong here", {"suffix": "nothing"}, "exact"),
        ("caption en", {"suffix": "a cat"}, "cider"),
        ("ocr", {"suffix": "STOP"}, "anls"),
        ("what is it?", {"suffix": "a cat"}, "exact"),
    ],
)
def test_rows_of_ask_are_measured_by_what_their_prompts_ask_for(cli, prompt, truth, metric):
    named = write("truth.jsonl", [{"id": "a.png", "prefix": prompt} | truth])
    for task in ("ask", None):  # None: of another program
        results = found(box("cat", *FIRST), prompt=prompt, task=task, answer="a cat")
        assert metric in evaluate(cli, results, "--truth", named)["metrics"]


def test_named_column_comes_before_the_known_ones(cli):
    rows = write("rows.jsonl", answers(("a", "red")))
    truth = write("truth.jsonl", [{"id": "a", "suffix": "blue", "answers": ["red"]}])
    words = (rows, "--truth", truth, "--metric", "exact")
    for named, value in (((), 0.0), (("--answer-column", "answers"), 1.0)):
        assert evaluate(cli, *words, *named)["metrics"]["exact"]["value"] == value


def test_each_box_needs_a_mask_or_null(cli):
    runs = encode_mask(numpy.ones((HEIGHT, WIDTH), bool))
    mask = {"size": [HEIGHT, WIDTH], "counts": runs.counts}
    boxes = [pixels(FIRST), pixels(SECOND)]
    truth = write("truth.jsonl", [{"id": "a.png", "boxes": boxes, "masks": [mask]}])
    assert "has 1 mask for 2 boxes" in refused(cli, found(), "--truth", truth)
