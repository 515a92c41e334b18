"""What evaluations of PaliGemma measure: each question once, by the metric of its task."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pgcli.evaluation.measures import task_of_prompt
from pgcli.inputs import ReadOptions
from pgcli.parsing import boxes, text_spans
from pgcli.records import Answer, DecodedImage, Item, unanswered
from pgcli.rows import RowSchema
from pgcli.tasks import MAX_NEW_TOKENS as LIMITS
from pgcli.training.answers import Key, TrueAnswers
from pgcli.training.rows import RowStore, TrainingRow, TrainingRows
from pgcli.training.sources import RowReader
from tests.support.evaluating import evaluate, write
from tests.support.exporting import SIZES, make_images, read_rows
from tests.support.training import draw, write_checkpoint

BOX = "<loc0100><loc0100><loc0500><loc0500> star"
ELSEWHERE = "<loc0600><loc0600><loc0900><loc0900> star"
SIDE = 60  # of the images, in pixels


def row(image: str, prompt: str, target: str) -> TrainingRow:
    return TrainingRow(Item(0, image, image), target, image, prompt=prompt)


def answered(texts: dict[Key, str], width: int = SIDE, height: int = SIDE) -> dict[Key, Answer]:
    """Answers as the engine gives them."""
    found = {}
    for (image, prompt), text in texts.items():
        decoded = DecodedImage(Item(0, image, image), width, height, None, 0.0)
        answer = unanswered(decoded, prompt, task=task_of_prompt(prompt), model="")
        place = boxes(text_spans(text), width=width, height=height)
        found[image, prompt] = replace(answer, answer=text, boxes=place)
    return found


def test_boxes_are_measured_by_ap_and_false_positives_count():
    prompt = "detect star"
    truths = TrueAnswers.of([row("a", prompt, BOX), row("b", prompt, f"{BOX} ; {ELSEWHERE}")])
    assert truths.main_metric == "ap"
    right = {("a", prompt): BOX, ("b", prompt): f"{BOX} ; {ELSEWHERE}"}
    assert truths.measure(answered(right))["ap"] == pytest.approx(1)
    wrong = right | {("a", prompt): ELSEWHERE}
    assert truths.measure(answered(wrong))["f1@0.5"] == pytest.approx(2 / 3)
    nothing = TrueAnswers.of([row("a", prompt, BOX), row("b", prompt, "")])
    found = nothing.measure(answered({("a", prompt): BOX, ("b", prompt): BOX}))
    assert found["precision@0.5"] == 0.5


def test_token_limit_allows_the_boxes_of_all_rows_of_a_question():
    """Each box is a row here, as in tables, and the model gives them in one answer."""
    limits = []

    class Engine:
        tokenizer = SimpleNamespace(encode_answer=str.split)
        model = SimpleNamespace(config=SimpleNamespace(max_answer_tokens=999))

        def ask(self, images, question, sampling):
            limits.append(question.max_new_tokens)
            return []

    objects = [f"<loc{place:04}> " * 4 + "star" for place in range(0, 1000, 100)]
    for texts in (objects, [" ; ".join(objects)]):
        truths = TrueAnswers.of([row("a", "detect star", text) for text in texts])
        list(truths.ask(Engine(), []))
    assert limits[0] == limits[1] > 10 * 5


def test_several_rows_of_a_question_are_several_true_answers():
    rows = [row("a", "what is it?", text) for text in ("a star", "star")]
    truths = TrueAnswers.of([*rows, row("b", "what is it?", "cross")])
    assert truths.main_metric == "anls"
    given = {("a", "what is it?"): "star", ("b", "what is it?"): "cross"}
    assert truths.measure(answered(given))["anls"] == 1


def test_question_without_an_answer_is_wrong():
    truths = TrueAnswers.of([row(name, "which?", "red") for name in "abcd"])
    found = truths.measure(answered({(name, "which?"): "red" for name in "abc"}))
    assert found == {"exact": 0.75}


def test_yes_and_no_are_measured_by_accuracy():
    truths = TrueAnswers.of([row("a", "is it red?", "yes"), row("b", "is it red?", "no")])
    assert truths.main_metric == "accuracy"


def test_tasks_with_different_metrics_have_no_main_metric():
    truths = TrueAnswers.of([row("a", "detect star", BOX), row("a", "caption en", "a star")])
    assert truths.main_metric is None
    found = truths.measure(answered({("a", "detect star"): BOX, ("a", "caption en"): "a star"}))
    assert {"ap", "cider"} <= found.keys()


def test_metrics_equal_pgcli_eval_on_the_same_answers(cli, tmp_path, monkeypatch):
    """Also for boxes in pixels, which the training targets round, and for rows of one prompt."""
    monkeypatch.chdir(make_images(tmp_path))
    close = {"label": "cat", "xmin": 8.31, "ymin": 4.27, "xmax": 20.64, "ymax": 14.58}
    rows: list[dict[str, Any]] = [
        {"image": "a.png", "prefix": "detect cat", "boxes": [close]},
        {"image": "a.png", "prefix": "detect cat", "suffix": ELSEWHERE.replace("star", "cat")},
        {"image": "b.jpg", "prefix": "detect cat", "suffix": ""},
        {"image": "sub/c.png", "prefix": "detect star", "suffix": BOX},
        {"image": "sub/c.png", "prefix": "detect damage", "suffix": "none"},
        {"image": "a.png", "prefix": "caption en", "suffix": "a cat on a mat"},
        {"image": "b.jpg", "prefix": "caption en", "suffix": "a star in the sky"},
        {"image": "a.png", "prefix": "how many?", "answers": ["two", "2"]},
        {"image": "b.jpg", "prefix": "how many?", "suffix": " one "},
        {"image": "a.png", "prefix": "what does it say? ", "suffix": "STOP"},
    ]
    truth = write("truth.jsonl", rows)
    store = RowStore(tmp_path)
    read = RowReader().read([truth], ReadOptions(), TrainingRows(store))
    truths = TrueAnswers.of(read)
    texts = {
        "detect cat": "<loc0094><loc0139><loc0305><loc0327> cat",
        "detect star": BOX, "detect damage": "none", "caption en": "a cat on the mat",
        "how many?": "two", "what does it say?": "STOP!",
    }  # fmt: skip
    sizes = {row.image_key: SIZES[row.item.id] for row in read}
    given = {
        key: answered({key: texts[key[1]]}, *sizes[key[0]])[key]
        for key in {(row.image_key, row.prompt): None for row in read}
    }
    names = {row.image_key: row.item.id for row in read}
    results = [
        RowSchema().row(replace(answer, id=names[key[0]], image=names[key[0]], task="ask"))
        for key, answer in given.items()
    ]
    measured = evaluate(cli, write("rows.jsonl", results), "--truth", truth)["metrics"]
    known = {name: one["value"] for name, one in measured.items() if one["value"] is not None}
    assert truths.measure(given) == pytest.approx(known, abs=1e-12)
    assert {"ap", "cider", "anls", "exact"} & known.keys() == {"ap", "cider", "anls"}
    assert 0 < known["ap"] < 1
    store.close()


def test_evaluation_of_a_run_equals_pgcli_eval(tmp_path, monkeypatch, cli):
    """Of the answers that `ask` gives with what was trained; a random model answers at random."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pgcli.training.answers.MAX_NEW_TOKENS", dict.fromkeys(LIMITS, 9))
    write_checkpoint(tmp_path / "tiny")
    for number in range(6):
        draw(tmp_path / f"{number}.png", number)
    close = {"label": "a", "xmin": 3.21, "ymin": 4.37, "xmax": 20.64, "ymax": 14.58}
    write(
        "train.jsonl",
        [{"image": f"{n}.png", "prefix": "which?", "suffix": "red"} for n in range(2)],
    )
    rows: list[dict[str, Any]] = []
    for number in range(2, 6):
        known = {"image": f"{number}.png"}
        rows += [known | {"prefix": "which?", "suffix": "red"}]
        rows += [known | {"prefix": "detect a", "boxes": [close] * (number % 2)}]
        rows += [known | {"prefix": "caption en", "suffix": f"a {number}"}] * 2
    write("eval.jsonl", rows)
    fixed = "--workers 0 --device cpu --dtype float32 -q"
    learned = "--method full --steps 1 --batch-size 2 --eval eval.jsonl --eval-every 1 -o out"
    code, _, err = cli(f"train train.jsonl --model tiny {learned} {fixed}")
    assert code == 0, err
    _, line = read_rows("out/metrics.jsonl")
    asked = [one for number, one in enumerate(rows) if number % 4 != 3]
    write("asked.jsonl", [{"image": one["image"], "prompt": one["prefix"], "id": f"{n}"}
                          for n, one in enumerate(asked)])  # fmt: skip
    assert cli(f"ask asked.jsonl --model out -o found.jsonl --max-new-tokens 9 {fixed}")[0] == 0
    ids = {(one["image"], one["prefix"]): f"{n}" for n, one in enumerate(asked)}
    truth = write("truth.jsonl", [one | {"id": ids[one["image"], one["prefix"]]} for one in rows])
    measured = evaluate(cli, "found.jsonl", "--truth", truth)["metrics"]
    known = {
        f"eval_{name}": one["value"] for name, one in measured.items() if one["value"] is not None
    }
    own = {name: value for name, value in line.items() if name.startswith("eval_")}
    del own["eval_loss"]
    assert own == pytest.approx(known, abs=1e-5)  # six digits in the file
    assert {"eval_exact", "eval_cider", "eval_recall@0.5"} <= own.keys()
