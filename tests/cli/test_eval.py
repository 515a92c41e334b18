"""eval: metrics of result files by a truth of any kind, with missing and surplus rows counted."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from pgcli.cli.main import main
from tests.support.exporting import box, detected, make_images, of, plain, row, saved, segmented
from tests.support.misbehaving import Server

pytestmark = pytest.mark.usefixtures("clean_environment")
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def answers(*pairs: tuple[str, str], prompt: str = "what?", **more: Any) -> list[dict[str, Any]]:
    """Rows of these ids and answers."""
    return [
        row(n, id=id_, prompt=prompt, task="ask", answer=text, **more)
        for n, (id_, text) in enumerate(pairs)
    ]


def write(name: str, rows: Iterable[dict[str, Any]]) -> str:
    return str(saved(Path(name), rows))


def evaluate(capsys: Capture, *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["eval", *words, "--json", "-q"]) == 0, capsys.readouterr().err
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def refused(capsys: Capture, *words: str) -> str:
    capsys.readouterr()
    assert main(["eval", *words]) == 2
    return capsys.readouterr().err


def truth_of(*pairs: tuple[str, Any], name: str = "truth.jsonl", **more: Any) -> str:
    return write(name, [{"id": id_, "answer": answer, **more} for id_, answer in pairs])


def test_json_has_exactly_the_columns_of_the_contract(capsys: Capture) -> None:
    rows = write("rows.jsonl", answers(("a", "red"), ("b", "blue"), ("c", "green"), ("x", "red")))
    truth = truth_of(("a", "red"), ("b", "red"), ("c", "green"), ("d", "red"))
    found = evaluate(capsys, rows, "--truth", truth)
    assert list(found) == ["metrics", "missing", "surplus"]
    assert (found["missing"], found["surplus"]) == (1, 1)
    (one,) = found["metrics"].values()
    assert list(one) == ["value", "low", "high", "rows"]
    assert (one["value"], one["rows"]) == (0.4, 5)  # missing and surplus rows are wrong
    assert 0 <= one["low"] < 0.4 < one["high"] <= 1


def test_only_common_leaves_out_missing_and_surplus_rows(capsys: Capture) -> None:
    rows = write("rows.jsonl", answers(("a", "red"), ("b", "blue"), ("x", "red")))
    truth = truth_of(("a", "red"), ("b", "red"), ("d", "red"))
    found = evaluate(capsys, rows, "--truth", truth, "--only-common")
    assert (found["missing"], found["surplus"]) == (1, 1)
    assert (found["metrics"]["exact"]["value"], found["metrics"]["exact"]["rows"]) == (0.5, 2)


def test_last_row_of_an_id_and_prompt_is_measured(capsys: Capture) -> None:
    rows = write("rows.jsonl", answers(("a", "blue"), ("b", "blue"), ("a", "red")))
    truth = truth_of(("a", "red"), ("b", "red"))
    found = evaluate(capsys, rows, "--truth", truth)
    assert (found["metrics"]["exact"]["value"], found["metrics"]["exact"]["rows"]) == (0.5, 2)
    assert evaluate(capsys, rows, "--truth", truth, "--only-common") == found
    assert main(["eval", rows, "--truth", truth]) == 0
    assert "1 row left out" in capsys.readouterr().err


def test_rows_are_joined_by_id_and_prompt(capsys: Capture) -> None:
    both = answers(("a", "red"), prompt="colour?") + answers(("a", "2"), prompt="how many?")
    rows = write("rows.jsonl", both)
    known = [
        {"id": "a", "prompt": "how many?\n", "answer": 2},
        {"id": "a", "prefix": " colour?", "suffix": "red"},
    ]
    found = evaluate(capsys, rows, "--truth", write("truth.jsonl", known))
    assert found["metrics"]["exact"]["value"] == 1.0
    known[0]["prompt"] = "how much?"
    found = evaluate(capsys, rows, "--truth", write("truth.jsonl", known))
    assert (found["missing"], found["surplus"]) == (1, 1)


def test_prompts_of_an_id_are_not_merged_where_they_are_ignored(capsys: Capture) -> None:
    rows = write("rows.jsonl", answers(("a", "red"), ("b", "2"), prompt="anything?"))
    known = [{"id": "a", "prompt": "colour?", "answer": "red"}]
    known += [{"id": "b", "prompt": "how many?", "answer": text} for text in ("2", "two")]
    words = (rows, "--truth", "truth.jsonl", "--metric", "exact", "--prompt-column", "")
    write("truth.jsonl", known)
    assert evaluate(capsys, *words)["metrics"]["exact"]["value"] == 1.0
    write("truth.jsonl", [*known, {"id": "a", "prompt": "shape?", "answer": "round"}])
    message = refused(capsys, *words)
    assert "2 prompts for 'a'" in message
    assert "leave out --prompt-column ''" in message


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet", "parquet with images"])
def test_truth_is_a_manifest_of_any_kind(capsys: Capture, kind: str) -> None:
    rows = write("rows.jsonl", answers(("a.png", "red"), ("b.png", "blue")))
    name = f"truth.{kind.partition(' ')[0]}"
    if kind.startswith("parquet"):
        has_images = kind != "parquet"
        images = [{"bytes": b"x", "path": one} for one in ("a.png", "b.png")]
        named = {"image": images} if has_images else {"id": ["a.png", "b.png"]}
        parquet.write_table(pyarrow.table({**named, "answers": [["red"], ["red", "blue"]]}), name)
    else:
        tab = "," if kind == "csv" else "\t"
        lists = ('"[""red""]"', '"[""red"", ""blue""]"')
        cells = [("image", "answers"), ("a.png", lists[0]), ("b.png", lists[1])]
        Path(name).write_text("".join(f"{tab.join(line)}\n" for line in cells))
    found = evaluate(capsys, rows, "--truth", name, "--metric", "exact")
    assert found["metrics"]["exact"]["value"] == 1.0


def test_blank_cell_of_csv_is_no_value(capsys: Capture) -> None:
    rows = write("rows.jsonl", answers(("a", "red"), ("b", "blue")))
    words = (rows, "--truth", "truth.csv", "--metric", "exact")
    Path("truth.csv").write_text("id,prompt,answer,caption,error\na,,,red,\nb, , ,blue,\n")
    assert evaluate(capsys, *words)["metrics"]["exact"]["value"] == 1.0
    assert "has none for 'a'" in refused(capsys, *words, "--answer-column", "answer")
    write("truth.jsonl", [{"id": id_, "answer": "", "caption": "red"} for id_ in "ab"])
    empty = write("empty.jsonl", answers(("a", ""), ("b", "")))
    found = evaluate(capsys, empty, "--truth", "truth.jsonl", "--metric", "exact")
    assert found["metrics"]["exact"]["value"] == 1.0
    Path("truth.csv").write_text('id,answer\na,"[""""]"\nb,"[""""]"\n')
    found = evaluate(capsys, empty, "--truth", "truth.csv", "--metric", "exact")
    assert found["metrics"]["exact"]["value"] == 1.0


def test_blank_corners_are_of_an_image_without_boxes(capsys: Capture, tmp_path: Path) -> None:
    rows = plain(make_images(tmp_path))
    lines = ["id,label,xmin,ymin,xmax,ymax"]
    for one in rows:
        for found in one["boxes"]:
            corners = ",".join(str(found[name]) for name in ("xmin", "ymin", "xmax", "ymax"))
            lines.append(f"{one['id']},{found['label']},{corners}")
    lines.append(f"{rows[1]['id']},,,,,")
    Path("truth.csv").write_text("\n".join(lines) + "\n")
    found = evaluate(capsys, write("rows.jsonl", rows), "--truth", "truth.csv")
    assert (found["surplus"], found["metrics"]["f1@0.5"]["value"]) == (0, 1.0)
    Path("truth.csv").write_text("\n".join([*lines, "a.png,dog,1,,3,4"]) + "\n")
    assert "are not boxes" in refused(capsys, "rows.jsonl", "--truth", "truth.csv")


def test_corrected_result_file_is_a_truth(capsys: Capture) -> None:
    rows = answers(("a", "red"), ("b", "blue"))
    write("truth.jsonl", [rows[0] | {"answer": "green"}, rows[1]])
    found = evaluate(capsys, write("rows.jsonl", rows), "--truth", "truth.jsonl")
    assert found["metrics"]["exact"]["value"] == 0.5


@pytest.mark.parametrize(
    ("answer", "metric"),
    [("red", "exact"), (["red", "blue"], "anls"), (["red"] * 9 + ["blue"], "vqa"), ("Yes", "f1")],
)
def test_auto_chooses_by_what_the_truth_says(capsys: Capture, answer: Any, metric: str) -> None:
    rows = write("rows.jsonl", answers(("a", "red"), ("b", "yes")))
    found = evaluate(capsys, rows, "--truth", truth_of(("a", answer), ("b", answer)))
    assert metric in found["metrics"]


BOX_METRICS = (
    "ap ap50 ap75 ap_small ap_medium ap_large ar@1 ar@10 ar@100 ar_small ar_medium ar_large "
    "precision@0.5 recall@0.5 f1@0.5 calibration"
).split()


def test_auto_measures_each_task(capsys: Capture, tmp_path: Path) -> None:
    boxes = plain(make_images(tmp_path))
    captions = [row(n, id=f"c{n}", task="caption", prompt="caption en") for n in range(3)]
    rows = [*boxes, *captions, *answers(("q", "red"))]
    write("rows.jsonl", rows)
    found = evaluate(capsys, "rows.jsonl", "--truth", "rows.jsonl")["metrics"]
    assert {name: one["rows"] for name, one in found.items()} == {
        **dict.fromkeys(BOX_METRICS, 3),
        "cider": 3,
        "exact": 1,
    }
    assert [found[name]["value"] for name in ("ap", "f1@0.5", "exact")] == pytest.approx([1] * 3)


def test_coco_json_is_a_truth_of_the_labels_that_were_asked(
    capsys: Capture, tmp_path: Path
) -> None:
    rows = [
        one | {"id": name}
        for one, name in zip(plain(make_images(tmp_path)), ("1.png", "2.png", "3.png"), strict=True)
    ]
    for one in rows:
        one["prompt"] = "detect cat ; dog"
    annotations = [
        {"image_id": 1, "category_id": 1, "bbox": [8, 4, 20, 10], "area": 5000},
        {"image_id": 1, "category_id": 2, "bbox": [0, 0, 64, 48]},
        {"image_id": 3, "category_id": 2, "bbox": [3, 6, 12, 30]},
        {"image_id": 3, "category_id": 3, "bbox": [1, 1, 5, 5]},  # which no prompt asks for
        {"image_id": 2, "category_id": 2, "bbox": [0, 0, 9, 9], "iscrowd": 1},
    ]
    sizes = [(row["width"], row["height"]) for row in rows]
    images = [
        {"id": n, "file_name": f"{n}.png", "width": width, "height": height}
        for n, (width, height) in enumerate(sizes, 1)
    ]
    names = enumerate(("dog", "cat", "car"), 1)
    document = {
        "images": images,
        "annotations": [one | {"id": n} for n, one in enumerate(annotations)],
        "categories": [{"id": n, "name": name} for n, name in names],
    }
    Path("coco.json").write_text(json.dumps(document))
    found = evaluate(capsys, write("rows.jsonl", rows), "--truth", "coco.json")["metrics"]
    assert found["ap"]["value"] == pytest.approx(1.0)
    assert found["f1@0.5"]["value"] == 1.0
    assert found["ap_large"]["value"] is None
    # the size is that of the annotation, which says that a mask has more pixels than its box
    assert [found[f"ar_{size}"]["value"] for size in ("small", "medium")] == [1.0, 1.0]


def test_documents_of_vqa_are_truths_by_question(capsys: Capture) -> None:
    """The files of VQA and OK-VQA have `annotations`, those of TextVQA and DocVQA `data`."""
    rows = write("rows.jsonl", answers(("262148000", "down"), ("262148001", "two")))
    ten = [{"answer": "down", "answer_confidence": "yes", "answer_id": n} for n in range(1, 11)]
    annotations = [
        {"question_id": 262148000, "image_id": 262148, "answer_type": "other", "answers": ten},
        {"question_id": 262148001, "image_id": 262148, "answer_type": "number",
         "answers": [{"answer": "2"}] * 7 + [{"answer": "3"}] * 3},
    ]  # fmt: skip
    Path("vqa.json").write_text(json.dumps({"info": {}, "annotations": annotations}))
    found = evaluate(capsys, rows, "--truth", "vqa.json", "--by", "answer_type")
    assert (found["metrics"]["vqa"]["value"], found["missing"], found["surplus"]) == (1.0, 0, 0)
    assert list(found["groups"]) == ["number", "other"]
    data = [{"questionId": 262148000, "question": "where?", "answers": ["down", "below"]}]
    Path("docvqa.json").write_text(json.dumps({"data": data}))
    found = evaluate(capsys, rows, "--truth", "docvqa.json", "--only-common")
    assert found["metrics"]["anls"]["value"] == 1.0
    questions = [{"question_id": 262148000, "question": "where?"}]
    Path("questions.json").write_text(json.dumps({"questions": questions}))
    assert "has no answers" in refused(capsys, rows, "--truth", "questions.json")


def test_truth_is_read_at_addresses_that_are_allowed(capsys: Capture) -> None:
    rows = write("rows.jsonl", answers(("a", "red"), ("b", "red")))
    lines = '{"id": "a", "answer": "red"}\n{"id": "b", "answer": "blue"}\n'
    coco = {"annotations": [{"question_id": "a", "answer": "red"}]}
    with Server(b"") as server:
        server.files = {"/truth.jsonl": lines.encode(), "/vqa.json": json.dumps(coco).encode()}
        words = (rows, "--truth", f"{server.url}/truth.jsonl")
        assert "--allow-urls" in refused(capsys, *words)
        assert "--allow-private-hosts" in refused(capsys, *words, "--allow-urls")
        allowed = ("--allow-urls", "--allow-private-hosts")
        assert evaluate(capsys, *words, *allowed)["metrics"]["exact"]["value"] == 0.5
        words = (rows, "--truth", f"{server.url}/vqa.json", *allowed, "--only-common")
        assert evaluate(capsys, *words)["metrics"]["exact"]["value"] == 1.0
        gone = (rows, "--truth", f"{server.url}/no.jsonl", *allowed)
        assert "nothing at the address" in refused(capsys, *gone)


def test_folder_of_parquet_is_a_truth(capsys: Capture) -> None:
    rows = write("rows.jsonl", answers(("a", "red"), ("b", "blue")))
    Path("truth").mkdir()
    assert "without .parquet files" in refused(capsys, rows, "--truth", "truth")
    for id_, answer in (("a", "red"), ("b", "blue")):
        table = pyarrow.table({"key": [id_], "answer": [answer]})
        parquet.write_table(table, f"truth/{id_}.parquet")
    words = (rows, "--truth", "truth")
    assert "a.parquet, row 1: it has neither 'id'" in refused(capsys, *words)
    found = evaluate(capsys, *words, "--id-column", "key")
    assert found["metrics"]["exact"]["value"] == 1.0


def test_location_tokens_of_a_training_file_are_boxes(capsys: Capture) -> None:
    found = (box("cat", 0.0, 0.0, 32.0, 48.0), box("cat", 40.0, 0.0, 64.0, 48.0))
    rows = [
        row(n, id=id_, task="detect", prompt="detect cat", width=64, height=48, boxes=boxes)
        for n, (id_, boxes) in enumerate([("a", found[:1]), ("b", ()), ("c", found)])
    ]
    suffix = "<loc0000><loc0000><loc1023><loc0512> cat"
    truth = write(
        "t.jsonl", [{"id": id_, "prefix": "detect cat", "suffix": suffix} for id_ in "abc"]
    )
    measured = evaluate(capsys, write("rows.jsonl", rows), "--truth", truth)["metrics"]
    assert measured["acc@0.5"]["value"] == pytest.approx(2 / 3)  # no box is a miss
    assert measured["recall@0.5"]["value"] == pytest.approx(2 / 3)
    assert measured["precision@0.5"]["value"] == pytest.approx(2 / 3)


def test_boxes_of_images_of_unknown_size_have_no_ap_by_size(capsys: Capture) -> None:
    found = (box("cat", 0.0, 0.0, 320.0, 480.0),)
    rows = [
        row(0, id="a", task="detect", prompt="detect cat", width=640, height=480, boxes=found),
        row(1, id="b", task="detect", prompt="detect cat", error="truncated"),
    ]
    write("rows.jsonl", rows)
    suffix = "<loc0000><loc0000><loc1023><loc0512> cat"
    known = [{"id": id_, "prefix": "detect cat", "suffix": suffix} for id_ in "abc"]
    for count, words in ((3, ()), (1, ("--only-common",))):
        truth = write("truth.jsonl", known if count == 3 else known[:1])
        measured = evaluate(capsys, "rows.jsonl", "--truth", truth, *words)["metrics"]
        assert measured["recall@0.5"]["value"] == pytest.approx(1 / count)
        assert measured["ap"]["value"] == pytest.approx(1 / count, abs=0.01)
        by_size = [measured[f"ap_{size}"]["value"] for size in ("small", "medium", "large")]
        assert by_size == [None, None, None if count == 3 else pytest.approx(1.0)]


def test_masks_are_compared_by_their_pixels(capsys: Capture, tmp_path: Path) -> None:
    rows = segmented(make_images(tmp_path))
    write("truth.jsonl", rows)
    found = evaluate(capsys, write("rows.jsonl", rows), "--truth", "truth.jsonl")["metrics"]
    assert (found["miou"]["value"], found["miou"]["rows"]) == (1.0, len(rows))
    none = [rows[0] | {"boxes": [], "masks": []}, *rows[1:]]
    found = evaluate(capsys, write("rows.jsonl", none), "--truth", "truth.jsonl")["metrics"]
    assert found["miou"]["value"] == pytest.approx(1 - 1 / len(rows))


def test_image_without_objects_has_masks_in_coco_json(capsys: Capture, tmp_path: Path) -> None:
    rows = segmented(make_images(tmp_path))[1:]
    rows[1] |= {"boxes": [], "masks": []}
    sizes = [(one["width"], one["height"]) for one in rows]
    document: dict[str, Any] = {
        "images": [
            {"id": n, "file_name": one["id"], "width": width, "height": height}
            for n, (one, (width, height)) in enumerate(zip(rows, sizes, strict=True))
        ],
        "annotations": [
            {"id": 1, "image_id": 0, "category_id": 1, "bbox": [0, 0, 9, 9],
             "segmentation": [[0, 0, 9, 0, 9, 9, 0, 9]]},
        ],
        "categories": [{"id": 1, "name": "dog"}],
    }  # fmt: skip
    Path("coco.json").write_text(json.dumps(document))
    words = (write("rows.jsonl", rows), "--truth", "coco.json", "--metric", "miou")
    assert 0.5 < evaluate(capsys, *words)["metrics"]["miou"]["value"] < 0.6
    del document["annotations"][0]["segmentation"]
    Path("coco.json").write_text(json.dumps(document))
    assert "needs masks" in refused(capsys, *words)


def test_columns_of_rows_and_of_the_truth_make_groups(capsys: Capture) -> None:
    rows = answers(("a", "red"), ("b", "blue"), ("c", "red"), kept={"split": "x"})
    rows[2]["split"] = "y"
    kinds = {"a": "easy", "b": "hard", "c": "easy"}
    known = [{"id": id_, "answer": "red", "kind": kind} for id_, kind in kinds.items()]
    truth = write("truth.jsonl", known)
    write("rows.jsonl", rows)
    for column, expected in (("kind", {"easy": 1.0, "hard": 0.0}), ("split", {"x": 0.5, "y": 1.0})):
        found = evaluate(capsys, "rows.jsonl", "--truth", truth, "--by", column)
        values = {name: one["metrics"]["exact"]["value"] for name, one in found["groups"].items()}
        assert values == expected


def test_two_files_have_differences_of_paired_rows(capsys: Capture) -> None:
    ids = [f"{n}" for n in range(40)]
    write("one.jsonl", answers(*((id_, "red" if int(id_) % 2 else "blue") for id_ in ids)))
    write("two.jsonl", answers(*((id_, "red") for id_ in reversed(ids[1:]))))
    truth = truth_of(*((id_, "red") for id_ in ids))
    found = evaluate(capsys, "one.jsonl", "two.jsonl", "--truth", truth)
    assert [one["missing"] for one in found["files"]] == [0, 1]
    change = found["differences"]["exact"]
    assert change["value"] == pytest.approx(39 / 40 - 0.5)
    assert 0.2 < change["low"] < change["value"] < change["high"] < 0.7
    assert change["rows"] == 40
    found = evaluate(capsys, "one.jsonl", "one.jsonl", "--truth", truth)
    assert found["differences"]["exact"] == {"value": 0.0, "low": 0.0, "high": 0.0, "rows": 40}


def labelled(n: int, **more: Any) -> dict[str, Any]:
    known = {"index": n, "id": f"{n}", "image": f"{n}.png", "width": 9, "height": 9}
    rest = dict.fromkeys(("load_ms", "vision_ms", "error", "error_message"))
    return known | more | {"model": "m"} | rest


def test_labels_of_a_classifier_have_an_accuracy(capsys: Capture) -> None:
    labels = [{"label": name, "probability": 0.2} for name in "abcde"]
    rows = [labelled(n, answer="a", labels=labels) for n in range(4)]
    truth = write("truth.csv", [])
    Path(truth).write_text("image,label\n0.png,a\n1.png,b\n2.png,e\n3.png,z\n".replace(".png", ""))
    found = evaluate(capsys, write("rows.jsonl", rows), "--truth", truth)["metrics"]
    assert {name: one["value"] for name, one in found.items()} == {
        "accuracy": 0.25,
        "accuracy@5": 0.75,
    }


def test_scores_and_embeddings_have_recalls(capsys: Capture) -> None:
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
         "error_message": None}
        for n, (text, vector) in enumerate(vectors.items())
    ]  # fmt: skip
    write("texts.jsonl", texts)
    by_score = evaluate(capsys, "scores.jsonl", "--truth", truth)["metrics"]
    words = ("images.jsonl", "--truth", truth, "--texts", "texts.jsonl")
    assert evaluate(capsys, *words)["metrics"] == by_score
    assert by_score["image_to_text@1"]["value"] == 1.0
    # the image of violet is closer to it than the other one that it is true of
    assert by_score["text_to_image@1"]["value"] == pytest.approx(3 / 4)
    assert by_score["text_to_image@5"]["value"] == 1.0
    twice = [{"id": id_, "texts": texts * 2} for id_, texts in true.items()]
    words = ("scores.jsonl", "--truth", write("twice.jsonl", twice))
    assert evaluate(capsys, *words)["metrics"] == by_score
    assert "--texts FILE" in refused(capsys, "images.jsonl", "--truth", truth)


def test_truth_that_does_not_fit_is_an_error_with_a_hint(capsys: Capture) -> None:
    rows = write("rows.jsonl", answers(("a", "red")))
    assert "does not exist" in refused(capsys, rows, "--truth", "no.jsonl")
    assert "a truth 'z'" in refused(capsys, rows, "--truth", truth_of(("z", "red")))
    other = refused(capsys, rows, "--truth", truth_of(("a", "red"), prompt="where?"))
    assert "'what?'" in other
    assert "--prompt-column ''" in other
    truth = truth_of(("a", "red"), prompt="where?")
    assert evaluate(capsys, rows, "--truth", truth, "--prompt-column", "")["missing"] == 0
    truth = truth_of(("a", "red"))
    assert "needs boxes" in refused(capsys, rows, "--truth", truth, "--metric", "ap")
    assert "4 or more" in refused(capsys, rows, "--truth", truth, "--metric", "vqa")
    assert "is not a metric" in refused(capsys, rows, "--truth", truth, "--metric", "bleu")
    assert "no 'colour'" in refused(capsys, rows, "--truth", truth, "--answer-column", "colour")
    assert "--by size" in refused(capsys, rows, "--truth", truth, "--by", "size")
    message = refused(capsys, rows, "--truth", truth, "--by", "boxes")
    assert "numbers are: index, id" in message
    assert message.count("boxes") == 1
    assert main(["eval", rows, "--truth", truth, "--view", truth]) == 13
    assert "another --view" in capsys.readouterr().err
    nothing = write("nothing.jsonl", [{"id": "a", "size": 3}])
    found = refused(capsys, rows, "--truth", nothing)
    assert "needs answers" in found
    assert "--answer-column" in found
    Path("truth.txt").write_text("a")
    assert "is not a table" in refused(capsys, rows, "--truth", "truth.txt")
    wrong = write("wrong.jsonl", [{"id": "a", "boxes": [{"label": "cat"}]}])
    assert "are not boxes" in refused(capsys, rows, "--truth", wrong)


def test_options_without_effect_are_refused(capsys: Capture) -> None:
    rows = write("rows.jsonl", answers(("a", "red")))
    truth = truth_of(("a", "red"))
    for words in (("--limit", "3"), ("--images", ".")):
        message = refused(capsys, rows, "--truth", truth, *words)
        assert f"{words[0]} has no effect without --view" in message
    Path("defaults.toml").write_text('[eval]\nlimit = 5\nimages = "."\n')
    assert evaluate(capsys, rows, "--truth", truth, "--config", "defaults.toml")["missing"] == 0
    assert "on exact" in refused(capsys, rows, "--truth", truth, "--texts", "no.jsonl")
    Path("vqa.json").write_text('{"annotations": [{"question_id": "a", "answer": "red"}]}')
    words = (rows, "--truth", "vqa.json", "--metric", "exact")
    for option in ("--id-column", "--prompt-column", "--answer-column"):
        assert f"{option} has no effect on vqa.json" in refused(capsys, *words, option, "key")
    assert evaluate(capsys, *words, "--prompt-column", "")["missing"] == 0


def test_errors_are_wrong_and_the_text_has_a_line_for_each_metric(capsys: Capture) -> None:
    rows = [*answers(("a", "red")), row(1, id="b", prompt="what?", task="ask", error="truncated")]
    truth = truth_of(("a", "red"), ("b", "red"))
    assert main(["eval", write("rows.jsonl", rows), "--truth", truth]) == 0
    captured = capsys.readouterr()
    assert captured.out == "  exact  0.5000  (0.0000 to 1.0000)  2 rows\n"
    assert "0 missing, 0 surplus, 1 with errors" in captured.err


def test_text_has_the_confidence_of_boxes_in_bins(capsys: Capture, tmp_path: Path) -> None:
    rows = plain(make_images(tmp_path))
    write("rows.jsonl", rows)
    assert main(["eval", "rows.jsonl", "--truth", "rows.jsonl", "-q"]) == 0
    out = capsys.readouterr().out
    assert "  ap_large       -\n" in out
    assert re.search(
        r"  confidence of boxes:\n    0\.\d to .* mean .* right 1\.00  \d boxes\n", out
    )


def page_data(file: str) -> dict[str, Any]:
    """The data of a page."""
    page = Path(file).read_text(encoding="utf-8")
    found = re.search(r'id="data">(.*?)</script>', page, re.S)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_page_has_the_worst_rows_beside_the_truth(capsys: Capture, tmp_path: Path) -> None:
    rows = plain(make_images(tmp_path))
    write("rows.jsonl", rows)
    moved = {**rows[2], "boxes": [one | {"xmax": one["xmin"] + 1} for one in rows[2]["boxes"]]}
    write("truth.jsonl", [*rows[:2], moved])
    words = ["rows.jsonl", "--truth", "truth.jsonl", "--view", "worst.html", "--limit", "2"]
    assert main(["eval", *words, "-q"]) == 0
    data = page_data("worst.html")
    assert [file["name"] for file in data["files"]] == ["rows.jsonl", "truth"]
    assert [row["id"] for row in data["rows"]] == [rows[2]["id"], rows[0]["id"]] * 2
    assert data["cards"] == [[0, 2], [1, 3]]
    assert ["f1@0.5", "0.0"] in data["rows"][0]["k"]
    evaluation = data["evaluation"]
    assert evaluation["files"][0]["metrics"]["ap"]["rows"] == 3
    bins = evaluation["files"][0]["calibration"]["bins"]
    assert sum(count for _, _, count in bins) == 3
    assert main(["eval", *words, "-q"]) == 0  # a page is replaced


def test_page_has_answers_and_differences_of_two_files(capsys: Capture, tmp_path: Path) -> None:
    folder = make_images(tmp_path)
    rows = [of(n, folder, task="ask", prompt="what?", answer=str(n), boxes=()) for n in range(3)]
    write("one.jsonl", rows)
    write("two.jsonl", [rows[0], rows[1] | {"answer": "x"}, rows[2]])
    truth = truth_of(*((one["id"], ["0", "1", "2", "2"]) for one in rows))
    words = ("one.jsonl", "two.jsonl", "--truth", truth, "--metric", "exact")
    evaluate(capsys, *words, "--view", "worst.html")
    data = page_data("worst.html")
    assert [data["rows"][number]["a"] for number in data["cards"][0]] == [
        "1",
        "x",
        "0\n1\n2 (2 times)",
    ]
    assert data["evaluation"]["differences"]["exact"]["value"] == pytest.approx(-1 / 3)


def test_detected_masks_without_pixels_are_refused(capsys: Capture, tmp_path: Path) -> None:
    rows = detected(make_images(tmp_path))
    write("truth.jsonl", rows)
    codes = [
        one | {"masks": [{"codes": [0] * 16, "rle": None}] * len(one["boxes"])} for one in rows
    ]
    words = (write("rows.jsonl", codes), "--truth", "truth.jsonl", "--metric", "miou")
    assert "--mask-decoder" in refused(capsys, *words)
