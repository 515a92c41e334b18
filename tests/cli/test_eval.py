"""eval: the metrics of result files, their groups and differences, the text output and the page."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pgcli.cli.main import main
from tests.support.evaluating import answers, evaluate, refused, truth_of, write
from tests.support.exporting import make_images, plain, row, segmented


@pytest.mark.parametrize(
    ("answer", "metric"),
    [("red", "exact"), (["red", "blue"], "anls"), (["red"] * 9 + ["blue"], "vqa"), ("Yes", "f1")],
)
def test_auto_chooses_by_what_the_truth_says(cli, answer, metric):
    rows = write("rows.jsonl", answers(("a", "red"), ("b", "yes")))
    found = evaluate(cli, rows, "--truth", truth_of(("a", answer), ("b", answer)))
    assert metric in found["metrics"]


BOX_METRICS = (
    "ap ap50 ap75 ap_small ap_medium ap_large ar@1 ar@10 ar@100 ar_small ar_medium ar_large "
    "precision@0.5 recall@0.5 f1@0.5"
).split()


def test_auto_measures_each_task(cli, tmp_path):
    boxes = plain(make_images(tmp_path))
    captions = [row(n, id=f"c{n}", task="caption", prompt="caption en") for n in range(3)]
    rows = [*boxes, *captions, *answers(("q", "red"))]
    write("rows.jsonl", rows)
    found = evaluate(cli, "rows.jsonl", "--truth", "rows.jsonl")["metrics"]
    assert {name: one["rows"] for name, one in found.items()} == {
        **dict.fromkeys(BOX_METRICS, 3),
        "cider": 3,
        "exact": 1,
    }
    assert [found[name]["value"] for name in ("ap", "f1@0.5", "exact")] == pytest.approx([1] * 3)


def test_masks_are_compared_by_their_pixels(cli, tmp_path):
    rows = segmented(make_images(tmp_path))
    write("truth.jsonl", rows)
    found = evaluate(cli, write("rows.jsonl", rows), "--truth", "truth.jsonl")["metrics"]
    assert (found["miou"]["value"], found["miou"]["rows"]) == (1.0, len(rows))
    none = [rows[0] | {"boxes": [], "masks": []}, *rows[1:]]
    found = evaluate(cli, write("rows.jsonl", none), "--truth", "truth.jsonl")["metrics"]
    assert found["miou"]["value"] == pytest.approx(1 - 1 / len(rows))


def labelled(n: int, **more: Any) -> dict[str, Any]:
    known = {"index": n, "id": f"{n}", "image": f"{n}.png", "width": 9, "height": 9}
    rest = dict.fromkeys(("load_ms", "vision_ms", "truncated", "error", "error_message"))
    return known | more | {"model": "m"} | rest


def test_labels_of_a_classifier_have_an_accuracy(cli):
    labels = [{"label": name, "probability": 0.2} for name in "abcde"]
    rows = [labelled(n, answer="a", labels=labels) for n in range(4)]
    truth = write("truth.csv", [])
    Path(truth).write_text("image,label\n0.png,a\n1.png,b\n2.png,e\n3.png,z\n".replace(".png", ""))
    found = evaluate(cli, write("rows.jsonl", rows), "--truth", truth)["metrics"]
    assert {name: one["value"] for name, one in found.items()} == {
        "accuracy": 0.25,
        "accuracy@5": 0.75,
    }


def test_scores_and_embeddings_have_recalls(cli):
    vectors = {"red": [1.0, 0.0], "blue": [0.0, 1.0], "violet": [0.7071, 0.7071]}
    images = {"0": [1.0, 0.0], "1": [0.0, 1.0], "2": [0.8, 0.6]}
    true = {"0": ["red"], "1": ["blue", "violet"], "2": ["violet"]}
    truth = write("truth.jsonl", [{"id": id_, "texts": texts} for id_, texts in true.items()])

    def product(one: list[float], other: list[float]) -> float:
        return sum(x * y for x, y in zip(one, other, strict=True))

    scored = [
        labelled(n, scores=[{"text": t, "cosine": product(v, w), "score": None, "probability": 0.1}
                            for t, w in vectors.items()])
        for n, v in enumerate(images.values())
    ]  # fmt: skip
    write("scores.jsonl", scored)
    write("images.jsonl", [labelled(n, embedding=v) for n, v in enumerate(images.values())])
    texts = [
        {"index": n, "id": f"{n}", "text": text, "embedding": vector, "model": "m", "error": None,
         "error_message": None, "truncated": False}
        for n, (text, vector) in enumerate(vectors.items())
    ]  # fmt: skip
    write("texts.jsonl", texts)
    by_score = evaluate(cli, "scores.jsonl", "--truth", truth)["metrics"]
    words = ("images.jsonl", "--truth", truth, "--texts", "texts.jsonl")
    assert evaluate(cli, *words)["metrics"] == by_score
    assert by_score["image_to_text@1"]["value"] == 1.0
    # the image of violet is closer to it than the other one that it is true of
    assert by_score["text_to_image@1"]["value"] == pytest.approx(3 / 4)
    assert by_score["text_to_image@5"]["value"] == 1.0
    twice = [{"id": id_, "texts": texts * 2} for id_, texts in true.items()]
    words = ("scores.jsonl", "--truth", write("twice.jsonl", twice))
    assert evaluate(cli, *words)["metrics"] == by_score
    assert "--texts FILE" in refused(cli, "images.jsonl", "--truth", truth)
    words = ("scores.jsonl", "images.jsonl", "--truth", truth, "--texts", "texts.jsonl")
    assert evaluate(cli, *words)["files"][1]["metrics"] == by_score


def page_data(file: str) -> dict[str, Any]:
    """The data of a page."""
    page = Path(file).read_text(encoding="utf-8")
    found = re.search(r'id="data">(.*?)</script>', page, re.S)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_page_has_the_worst_rows_beside_the_truth(cli, tmp_path):
    rows = plain(make_images(tmp_path))
    write("rows.jsonl", rows)
    moved = {**rows[2], "boxes": [one | {"xmax": one["xmin"] + 1} for one in rows[2]["boxes"]]}
    write("truth.jsonl", [*rows[:2], moved])
    words = ["rows.jsonl", "--truth", "truth.jsonl", "--view", "worst.html", "--worst", "2"]
    assert main(["eval", *words, "-q"]) == 0
    data = page_data("worst.html")
    assert [file["name"] for file in data["files"]] == ["rows.jsonl", "truth"]
    shown = data["rows"]
    assert [row["id"] for row in shown] == [rows[2]["id"], rows[0]["id"]] * 2
    assert data["cards"] == [[0, 2], [1, 3]]
    assert shown[0]["f1@0.5"] == 0.0
    evaluation = data["evaluation"]
    assert evaluation["files"][0]["metrics"]["ap"]["rows"] == 3
    assert main(["eval", *words, "-q"]) == 0  # a page is replaced
