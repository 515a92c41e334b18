"""The truth is read from files of every kind, and joined with rows by id and prompt."""

import json
import time
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from PIL import Image
from pyarrow import parquet

from pgcli.evaluation.join import join, read_truth
from tests.support.evaluating import answers, evaluate, refused, save, truth_of, write
from tests.support.exporting import box, make_images, plain, row, segmented
from tests.support.misbehaving import Server

pytestmark = pytest.mark.usefixtures("workdir")


@pytest.mark.parametrize("words", [(), ("--only-common",), ("--prompt-column", "")])
def test_row_that_results_have_twice_is_refused(cli, words):
    rows = write("rows.jsonl", answers(("a", "red"), ("b", "blue"), ("a", "red")))
    message = refused(cli, rows, "--truth", truth_of(("a", "red"), ("b", "red")), *words)
    assert f"{rows} has 2 rows for 'a' with the prompt 'what?'" in message


def test_truth_includes_saved_rows_of_an_unfinished_run(cli):
    pairs = [("a", "red"), ("b", "blue")]
    lines = Path(write("rows.jsonl", answers(*pairs))).read_text().splitlines(keepends=True)
    open_folder = Path("truth.jsonl.pgcli/open")
    open_folder.mkdir(parents=True)
    (open_folder / "000000000001.jsonl").write_text(lines[1])
    Path("truth.jsonl").write_text(lines[0])
    values = evaluate(cli, "rows.jsonl", "--truth", "truth.jsonl")
    assert (values["metrics"]["exact"]["rows"], values["surplus"]) == (2, 0)
    Path("truth.jsonl").unlink()
    (open_folder / "000000000000.jsonl").write_text(lines[0])
    assert evaluate(cli, "rows.jsonl", "--truth", "truth.jsonl") == values


def test_join_takes_time_in_proportion_to_the_rows():
    seconds = []
    for count in (1_000, 8_000):
        pairs = [(str(number), "red") for number in range(count)]
        rows, truth = write("rows.jsonl", answers(*pairs)), truth_of(*pairs)
        truths, start = read_truth(truth), time.process_time()
        join(rows, truths)
        seconds.append(time.process_time() - start)
    assert seconds[1] < 24 * seconds[0], "quadratic: 64 times as long"


def test_rows_are_joined_by_id_and_prompt(cli):
    both = answers(("a", "red"), prompt="colour?") + answers(("a", "2"), prompt="how many?")
    rows = write("rows.jsonl", both)
    known = [
        {"id": "a", "prompt": "how many?\n", "answer": 2},
        {"id": "a", "prefix": " colour?", "suffix": "red"},
    ]
    found = evaluate(cli, rows, "--truth", write("truth.jsonl", known))
    assert found["metrics"]["exact"]["value"] == 1.0
    known[0]["prompt"] = "how much?"
    found = evaluate(cli, rows, "--truth", write("truth.jsonl", known))
    assert (found["missing"], found["surplus"]) == (1, 1)


def test_prompts_of_an_id_are_not_merged_where_they_are_ignored(cli):
    rows = write("rows.jsonl", answers(("a", "red"), ("b", "2"), prompt="anything?"))
    known = [{"id": "a", "prompt": "colour?", "answer": "red"}]
    known += [{"id": "b", "prompt": "how many?", "answer": text} for text in ("2", "two")]
    words = (rows, "--truth", "truth.jsonl", "--metric", "exact", "--prompt-column", "")
    write("truth.jsonl", known)
    assert evaluate(cli, *words)["metrics"]["exact"]["value"] == 1.0
    write("truth.jsonl", [*known, {"id": "a", "prompt": "shape?", "answer": "round"}])
    message = refused(cli, *words)
    assert "2 prompts for 'a'" in message
    assert "omit --prompt-column ''" in message


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet", "parquet with images"])
def test_truth_is_a_manifest_of_any_kind(cli, kind):
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
    found = evaluate(cli, rows, "--truth", name, "--metric", "exact")
    assert found["metrics"]["exact"]["value"] == 1.0


def test_blank_cell_of_csv_is_no_value(cli):
    rows = write("rows.jsonl", answers(("a", "red"), ("b", "blue")))
    words = (rows, "--truth", "truth.csv", "--metric", "exact")
    Path("truth.csv").write_text("id,prompt,answer,caption,error\na,,,red,\nb, , ,blue,\n")
    assert evaluate(cli, *words)["metrics"]["exact"]["value"] == 1.0
    assert "has none for 'a'" in refused(cli, *words, "--answer-column", "answer")
    write("truth.jsonl", [{"id": id_, "answer": "", "caption": "red"} for id_ in "ab"])
    empty = write("empty.jsonl", answers(("a", ""), ("b", "")))
    found = evaluate(cli, empty, "--truth", "truth.jsonl", "--metric", "exact")
    assert found["metrics"]["exact"]["value"] == 1.0
    Path("truth.csv").write_text('id,answers\na,"[""""]"\nb,"[""""]"\n')
    found = evaluate(cli, empty, "--truth", "truth.csv", "--metric", "exact")
    assert found["metrics"]["exact"]["value"] == 1.0


def test_blank_corners_are_of_an_image_without_boxes(cli, tmp_path):
    rows = plain(make_images(tmp_path))
    lines = ["id,label,xmin,ymin,xmax,ymax"]
    for one in rows:
        for found in one["boxes"]:
            corners = ",".join(str(found[name]) for name in ("xmin", "ymin", "xmax", "ymax"))
            lines.append(f"{one['id']},{found['label']},{corners}")
    lines.append(f"{rows[1]['id']},,,,,")
    Path("truth.csv").write_text("\n".join(lines) + "\n")
    found = evaluate(cli, write("rows.jsonl", rows), "--truth", "truth.csv")
    assert (found["surplus"], found["metrics"]["f1@0.5"]["value"]) == (0, 1.0)
    Path("truth.csv").write_text("\n".join([*lines, "a.png,dog,1,,3,4"]) + "\n")
    assert "boxes[0]: ymin is not a number" in refused(cli, "rows.jsonl", "--truth", "truth.csv")


def test_row_that_a_review_rejected_is_wrong(cli):
    rows = answers(("a", "red"), ("b", "blue"), ("c", "green"))
    write("rows.jsonl", rows)
    write("truth.jsonl", [rows[0], rows[1] | {"answer": "black"}])  # as `apply` writes them
    found = evaluate(cli, "rows.jsonl", "--truth", "truth.jsonl")
    assert (found["missing"], found["surplus"]) == (0, 1)
    assert found["metrics"]["exact"]["value"] == pytest.approx(1 / 3)
    accepted = evaluate(cli, "rows.jsonl", "--truth", "truth.jsonl", "--only-common")
    assert (accepted["metrics"]["exact"]["value"], accepted["surplus"]) == (0.5, 1)
    code, _, err = cli("eval rows.jsonl --truth truth.jsonl")
    assert (code, "missing and surplus rows are counted as wrong" in err) == (0, True)


def write_coco(rows, annotations, *names):
    """A document of the images of rows; images and the names of categories are numbered from 1."""
    kept = ("width", "height")
    document = {
        "images": [
            {"id": n, "file_name": one["id"]} | {name: one[name] for name in kept}
            for n, one in enumerate(rows, 1)
        ],
        "annotations": [one | {"id": n} for n, one in enumerate(annotations)],
        "categories": [{"id": n, "name": name} for n, name in enumerate(names, 1)],
    }
    Path("coco.json").write_text(json.dumps(document))


def test_coco_json_is_a_truth_of_the_labels_that_were_asked(cli, tmp_path):
    rows = plain(make_images(tmp_path))
    for one in rows:
        one["prompt"] = "detect cat ; dog"
    annotations = [
        {"image_id": 1, "category_id": 1, "bbox": [8, 4, 20, 10], "area": 5000},
        {"image_id": 1, "category_id": 2, "bbox": [0, 0, 64, 48]},
        {"image_id": 3, "category_id": 2, "bbox": [3, 6, 12, 30]},
        {"image_id": 3, "category_id": 3, "bbox": [1, 1, 5, 5]},  # which no prompt asks for
        {"image_id": 2, "category_id": 2, "bbox": [0, 0, 9, 9], "iscrowd": 1},
    ]
    write_coco(rows, annotations, "dog", "cat", "car")
    found = evaluate(cli, write("rows.jsonl", rows), "--truth", "coco.json")["metrics"]
    assert found["ap"]["value"] == pytest.approx(1.0)
    assert found["f1@0.5"]["value"] == 1.0
    assert found["ap_large"]["value"] is None
    # the annotation states the size: a mask may have more pixels than its box
    assert [found[f"ar_{size}"]["value"] for size in ("small", "medium")] == [1.0, 1.0]


def test_true_boxes_of_coco_json_are_read_as_they_are():
    """Also those that leave the image, and fractions of pixels, as pycocotools measures them."""
    sides = [[-5.25, 3.123456789, 25.25, 27.376543211], [40.0, 10.0, 40.0, 50.75]]
    annotations = [{"image_id": 1, "category_id": 1, "bbox": four} for four in sides]
    write_coco([{"id": "1.png", "width": 64, "height": 48}], annotations, "dog")
    (truth,) = read_truth("coco.json").by_key["1.png", None]
    found = [
        [box.xmin, box.ymin, box.xmax - box.xmin, box.ymax - box.ymin] for box in truth.boxes or ()
    ]
    assert np.allclose(found, sides, rtol=0, atol=1e-12)
    assert [known.object_area for known in truth.objects or ()] == pytest.approx(
        [wide * high for _, _, wide, high in sides], abs=1e-9
    )


def test_documents_of_vqa_are_truths_by_question(cli):
    """Files of VQA and OK-VQA have `annotations`, files of TextVQA and DocVQA have `data`."""
    rows = write("rows.jsonl", answers(("262148000", "down"), ("262148001", "two")))
    ten = [{"answer": "down", "answer_confidence": "yes", "answer_id": n} for n in range(1, 11)]
    annotations = [
        {"question_id": 262148000, "image_id": 262148, "answer_type": "other", "answers": ten},
        {"question_id": 262148001, "image_id": 262148, "answer_type": "number",
         "answers": [{"answer": "2"}] * 7 + [{"answer": "3"}] * 3},
    ]  # fmt: skip
    Path("vqa.json").write_text(json.dumps({"info": {}, "annotations": annotations}))
    found = evaluate(cli, rows, "--truth", "vqa.json", "--by", "answer_type")
    assert (found["metrics"]["vqa"]["value"], found["missing"], found["surplus"]) == (1.0, 0, 0)
    assert list(found["groups"]) == ["number", "other"]
    data = [{"questionId": 262148000, "question": "where?", "answers": ["down", "below"]}]
    Path("docvqa.json").write_text(json.dumps({"data": data}))
    found = evaluate(cli, rows, "--truth", "docvqa.json", "--only-common")
    assert found["metrics"]["anls"]["value"] == 1.0
    questions = [{"question_id": 262148000, "question": "where?"}]
    Path("questions.json").write_text(json.dumps({"questions": questions}))
    assert "has no answers" in refused(cli, rows, "--truth", "questions.json")


def test_truth_is_read_at_addresses_that_are_allowed(cli):
    rows = write("rows.jsonl", answers(("a", "red"), ("b", "red")))
    lines = '{"id": "a", "answer": "red"}\n{"id": "b", "answer": "blue"}\n'
    coco = {"annotations": [{"question_id": "a", "answer": "red"}]}
    with Server(b"") as server:
        server.files = {"/truth.jsonl": lines.encode(), "/vqa.json": json.dumps(coco).encode()}
        words = (rows, "--truth", f"{server.url}/truth.jsonl")
        assert "--allow-urls" in refused(cli, *words)
        assert "--allow-private-hosts" in refused(cli, *words, "--allow-urls")
        allowed = ("--allow-urls", "--allow-private-hosts")
        assert evaluate(cli, *words, *allowed)["metrics"]["exact"]["value"] == 0.5
        words = (rows, "--truth", f"{server.url}/vqa.json", *allowed, "--only-common")
        assert evaluate(cli, *words)["metrics"]["exact"]["value"] == 1.0
        gone = (rows, "--truth", f"{server.url}/no.jsonl", *allowed)
        assert "URL does not exist" in refused(cli, *gone)


def test_folder_of_parquet_is_a_truth(cli):
    rows = write("rows.jsonl", answers(("a", "red"), ("b", "blue")))
    Path("truth").mkdir()
    assert "without .parquet files" in refused(cli, rows, "--truth", "truth")
    for id_, answer in (("a", "red"), ("b", "blue")):
        table = pyarrow.table({"key": [id_], "answer": [answer]})
        parquet.write_table(table, f"truth/{id_}.parquet")
    words = (rows, "--truth", "truth")
    assert "a.parquet, row 1 has neither 'id'" in refused(cli, *words)
    found = evaluate(cli, *words, "--id-column", "key")
    assert found["metrics"]["exact"]["value"] == 1.0


def test_boxes_of_images_of_unknown_size_have_no_ap_by_size(cli):
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
        measured = evaluate(cli, "rows.jsonl", "--truth", truth, *words)["metrics"]
        assert measured["recall@0.5"]["value"] == pytest.approx(1 / count)
        assert measured["ap"]["value"] == pytest.approx(1 / count, abs=0.01)
        by_size = [measured[f"ap_{size}"]["value"] for size in ("small", "medium", "large")]
        assert by_size == [None, None, None if count == 3 else pytest.approx(1.0)]


def test_image_without_objects_has_masks_in_coco_json(cli, tmp_path):
    rows = segmented(make_images(tmp_path))[1:]
    rows[1] |= {"boxes": [], "masks": []}
    box = {"image_id": 1, "category_id": 1, "bbox": [0, 0, 9, 9]}
    write_coco(rows, [box | {"segmentation": [[0, 0, 9, 0, 9, 9, 0, 9]]}], "dog")
    words = (write("rows.jsonl", rows), "--truth", "coco.json", "--metric", "miou")
    assert 0.5 < evaluate(cli, *words)["metrics"]["miou"]["value"] < 0.6
    write_coco(rows, [box], "dog")
    assert "needs masks" in refused(cli, *words)


def test_truth_of_a_data_set_is_read_as_it_is_trained_on(cli):
    """A kept `suffix` is the truth about an `answer`; integers of classes have their names."""
    rows = write("rows.jsonl", answers(("a", "red"), ("b", "blue")))
    known = [{"id": id_, "answer": "?", "suffix": text} for id_, text in (("a", "red"), ("b", "x"))]
    found = evaluate(cli, rows, "--truth", write("truth.jsonl", known))
    assert found["metrics"]["exact"]["value"] == 0.5
    feature = {"_type": "ClassLabel", "names": ["red", "blue"]}
    metadata = {"huggingface": json.dumps({"info": {"features": {"label": feature}}})}
    table = pyarrow.table({"id": ["a", "b"], "label": [0, 0]}).replace_schema_metadata(metadata)
    parquet.write_table(table, "truth.parquet")
    found = evaluate(cli, rows, "--truth", "truth.parquet", "--metric", "exact")
    assert found["metrics"]["exact"]["value"] == 0.5


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_columns_with_lists_and_objects_are_named(cli, kind):
    known = {"id": "a", "bbox": [2.0, 2.0, 20.0, 20.0], "objects": {"bbox": [[1.0]]}, "area": 9}
    rows = write("rows.jsonl", answers(("a", "")))
    truth = save(f"truth.{kind}", [known])
    message = refused(cli, rows, "--truth", truth, "--metric", "ap")
    assert "its columns with a value are: id, bbox, objects, area; 'boxes' is a list of" in message
    message = refused(cli, rows, "--truth", truth, "--metric", "exact", "--by", "bbox")
    assert "the truth has none for 'a'" in message


def label_folder(*names: str) -> str:
    for name in names:
        Path("flowers", name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(Path("flowers", name))
    return "flowers"


def test_folder_of_folders_is_a_truth_of_labels(cli):
    truth = label_folder("cat/a.png", "cat/deep/b.png", "dog/a.png", "dog/c.png")
    ids = (("cat/a.png", "cat"), ("cat/deep/b.png", "dog"), ("dog/a.png", "dog"))
    found = evaluate(cli, write("rows.jsonl", answers(*ids)), "--truth", truth, "--by", "label")
    assert (found["metrics"]["exact"]["value"], found["missing"]) == (0.5, 1)
    assert {
        name: group["metrics"]["exact"]["value"] for name, group in found["groups"].items()
    } == {
        "cat": 0.5,
        "dog": 0.5,
    }
    assert "not a table" in refused(cli, "rows.jsonl", "--truth", truth, "--answer-column", "x")
    label_folder("e.png")
    assert "it is directly in flowers" in refused(cli, "rows.jsonl", "--truth", truth)
