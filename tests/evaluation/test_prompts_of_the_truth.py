"""Answers are compared with the truth of their own prompt, or not at all."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.evaluating import answers, evaluate, refused, save, write
from tests.support.exporting import make_images

pytestmark = pytest.mark.usefixtures("workdir")

QUESTIONS = {"how many?": "2", "what colour?": "red"}


def wrong_rows() -> str:
    """Answers to both questions, each the true answer to the other one."""
    asked = zip(QUESTIONS, reversed(QUESTIONS.values()), strict=True)
    return write("rows.jsonl", [one for q, a in asked for one in answers(("a.png", a), prompt=q)])


def truth_rows(column: str, answer: str = "answer") -> list[dict[str, Any]]:
    return [{"image": "a.png", column: q, answer: text} for q, text in QUESTIONS.items()]


@pytest.mark.parametrize("kind", ["jsonl", "csv", "tsv", "parquet"])
@pytest.mark.parametrize(
    ("column", "answer"),
    [("question", "answer"), ("problem", "solution"), ("text", "label"), ("query", "answers")],
)
def test_questions_of_an_image_are_not_joined_by_id_alone(cli, kind, column, answer):
    rows, truth = wrong_rows(), save(f"truth.{kind}", truth_rows(column, answer))
    named = () if answer != "solution" else ("--answer-column", answer)
    message = refused(cli, rows, "--truth", truth, *named)
    assert f"{truth} has 2 rows for 'a.png' without a prompt" in message
    assert "--prompt-column NAME names the column of the truth with the prompts;" in message
    words = ("--prompt-column", column, "--metric", "exact", *named)
    assert evaluate(cli, rows, "--truth", truth, *words)["metrics"]["exact"]["value"] == 0.0


def test_one_truth_is_not_compared_with_several_prompts_unasked(cli):
    truth = write("truth.jsonl", truth_rows("question")[:1])
    message = refused(cli, wrong_rows(), "--truth", truth)
    assert "several prompts for 'a.png' ('how many?' and 'what colour?')" in message
    assert "--prompt-column '' joins rows by id alone" in message
    words = ("--prompt-column", "", "--metric", "exact")
    assert evaluate(cli, "rows.jsonl", "--truth", truth, *words)["metrics"]["exact"]["value"] == 0.5


def test_references_to_one_prompt_are_a_list_or_have_the_prompt(cli):
    rows = write("rows.jsonl", answers(("a", "red")))
    known = [{"id": "a", "answer": text} for text in ("red", "crimson")]
    message = refused(cli, rows, "--truth", write("truth.jsonl", known))
    assert "several answers to one prompt are a list in one row" in message
    for own in (
        [{"id": "a", "answers": ["red", "crimson"]}],
        [{"prompt": "what?"} | k for k in known],
    ):
        words = ("--truth", write("truth.jsonl", own), "--metric", "exact")
        assert evaluate(cli, rows, *words)["metrics"]["exact"]["value"] == 1.0


def test_prompts_of_boxes_are_told_apart_by_their_labels(cli):
    """COCO has the boxes of all labels of an image, whatever rows asked for."""
    sides = dict.fromkeys(("xmin", "ymin"), 0.0) | {"xmax": 9.0, "ymax": 9.0}
    boxes = [{"label": name, **sides} for name in ("cat", "dog")]
    rows = [
        one | {"task": "detect", "boxes": [own], "prompt": f"detect {own['label']}"}
        for own in boxes
        for one in answers(("a.png", ""), width=64, height=48)
    ]
    truth = write("truth.jsonl", [{"image": "a.png", "boxes": [own]} for own in boxes])
    found = evaluate(cli, write("rows.jsonl", rows), "--truth", truth)["metrics"]
    assert (found["f1@0.5"]["value"], found["f1@0.5"]["rows"]) == (1.0, 2)


def test_captions_of_coco_are_references_of_one_prompt(cli):
    document = {
        "images": [{"id": 1, "file_name": "a.png", "width": 64, "height": 48}],
        "annotations": [
            {"id": n, "image_id": 1, "caption": text} for n, text in enumerate(("red", "a red cat"))
        ],
    }
    Path("coco.json").write_text(json.dumps(document))
    rows = write("rows.jsonl", answers(("a.png", "a red cat"), prompt="caption en"))
    words = ("--truth", "coco.json", "--metric", "exact")
    assert evaluate(cli, rows, *words)["metrics"]["exact"]["value"] == 1.0
    assert "several prompts for 'a.png'" in refused(cli, wrong_rows(), *words)


def test_question_that_a_document_has_twice_is_refused(cli):
    rows = write("rows.jsonl", answers(("7", "down")))
    records = [{"question_id": 7, "answers": [{"answer": text}]} for text in ("down", "up")]
    Path("vqa.json").write_text(json.dumps({"annotations": records}))
    assert "question 7 occurs twice" in refused(cli, rows, "--truth", "vqa.json")


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize(("column", "answer"), [("question", "answer"), ("text", "label")])
def test_import_and_training_do_not_guess_a_prompt(cli, kind, column, answer):
    make_images(Path())
    source = save(f"made.{kind}", truth_rows(column, answer))
    words = ("import", source, "--from", "csv", "-o", "out.jsonl")
    code, _, err = cli(*words)
    assert (code, "several rows of 'a.png' have no prompt" in err) == (2, True)
    assert f"rename the column of the prompts, perhaps '{column}', to 'prompt'" in err
    assert cli(*words, "--prompt", "what is it?")[0] == 0
    code, _, err = cli("train", source, "--model", "demo", "-o", "m", "--dry-run")
    assert (code, f"(columns: image, {column}, {answer})" in err) == (4, True)
