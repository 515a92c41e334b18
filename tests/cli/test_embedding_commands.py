"""embed, score and classify, on the command line: rows, files, resuming, refusals."""

import csv
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from pgcli.checkpoints.find import Checkpoint
from pgcli.cli.main import main
from pgcli.records import CLASSIFY_COLUMNS, SCORE_COLUMNS, TEXT_EMBED_COLUMNS
from pgcli.towers.engine import open_towers
from tests.support import towers
from tests.support.exporting import read_rows

COUNT = 6
CAPTIONS = ["a small red star", "a blue circle", "a small red star", "a large square"]


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {kind: towers.checkpoint_into(folder / kind, kind) for kind in ("siglip", "clip")}


@pytest.fixture(autouse=True)
def photos() -> None:
    """A folder of images of noise, one of them broken, and a manifest of some."""
    noise = np.random.default_rng(0)
    folder = Path("photos")
    folder.mkdir()
    for number in range(COUNT):
        pixels = noise.integers(0, 256, (30 + 5 * number, 40, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    (folder / "3.png").write_bytes(b"no image")
    with Path("captions.csv").open("w", newline="") as file:
        rows = [["image", "caption"], *([f"photos/{n}.png", CAPTIONS[n]] for n in (0, 1, 2))]
        csv.writer(file).writerows([*rows, ["photos/3.png", CAPTIONS[3]]])


def run(command: str, model: Path, *words: str, code: int = 3) -> None:
    options = ("--model", str(model), "--device", "cpu", "--workers", "0", "--quiet")
    assert main([command, *words, *options]) == code


def test_float16_embeddings_are_rounded(models):
    for output, options in (("a.parquet", []), ("b.parquet", ["--dtype-out", "float16"])):
        run("embed", models["siglip"], "photos", "-o", output, *options)
    run("embed", models["siglip"], "photos", "-o", "b.jsonl", "--dtype-out", "float16")
    exact, half = (pq.read_table(name)["embedding"] for name in ("a.parquet", "b.parquet"))
    assert str(half.type.value_type) == "halffloat"
    for one, other, line in zip(exact, half, read_rows("b.jsonl"), strict=True):
        if one.is_valid:
            assert np.array_equal(np.array(one.as_py(), np.float16), np.array(other.as_py()))
            assert np.array_equal(np.array(line["embedding"], np.float16), np.array(other.as_py()))


def test_embedded_texts_are_rows_without_image_columns(models):
    Path("texts.txt").write_text("a blue circle\n\na star\n")
    words = ("--text", "a red star", "--text", "a red star", "--texts-file", "texts.txt")
    run("embed", models["siglip"], *words, "-o", "rows.jsonl", "--limit", "3", code=0)
    run("embed", models["siglip"], *words, "-o", "rows.jsonl", code=0)
    rows = read_rows("rows.jsonl")
    assert [tuple(row) for row in rows] == [TEXT_EMBED_COLUMNS] * 4
    texts = [row["text"] for row in rows]
    assert texts == ["a red star", "a red star", "a blue circle", "a star"]
    engine = open_towers(Checkpoint("m", models["siglip"]), device="cpu")
    vectors = np.array([row["embedding"] for row in rows])
    assert np.allclose(vectors, engine.encode_texts(texts), atol=1e-6)
    assert main(["check", "rows.jsonl"]) == 0
    Path("texts.txt").write_text("another\n")
    run("embed", models["siglip"], *words, "-o", "rows.jsonl", code=13)


def test_scores_are_the_cosines_sigmoids_and_softmax(models):
    for kind in ("siglip", "clip"):
        words = ("--text", "a red star", "--text", "a blue circle")
        run("score", models[kind], "photos", *words, "-o", f"{kind}.jsonl")
        run("embed", models[kind], "photos", "-o", f"{kind}-embed.jsonl")
        run("embed", models[kind], *words, "-o", f"{kind}-texts.jsonl", code=0)
        texts = np.array([row["embedding"] for row in read_rows(f"{kind}-texts.jsonl")])
        engine = open_towers(Checkpoint("m", models[kind]), device="cpu")
        for row, image in zip(
            read_rows(f"{kind}.jsonl"), read_rows(f"{kind}-embed.jsonl"), strict=True
        ):
            assert tuple(row) == SCORE_COLUMNS
            if row["error"] is not None:
                assert row["scores"] is None
                continue
            cosines = texts @ np.array(image["embedding"])
            logits = engine.scores(cosines)
            found = row["scores"]
            assert [one["text"] for one in found] == ["a red star", "a blue circle"]
            assert np.allclose([one["cosine"] for one in found], cosines, atol=1e-5)
            softmax = np.exp(logits) / np.exp(logits).sum()
            assert np.allclose([one["probability"] for one in found], softmax, atol=1e-5)
            sigmoid = [None, None] if kind == "clip" else 1 / (1 + np.exp(-logits))
            scores = [one["score"] for one in found]
            assert scores == [None] * 2 if kind == "clip" else np.allclose(scores, sigmoid)


def test_each_row_is_scored_with_its_own_text(models):
    words = ("captions.csv", "--text-column", "caption", "--keep", "caption")
    run("score", models["siglip"], *words, "-o", "own.jsonl", "--limit", "2", code=0)
    run("score", models["siglip"], *words, "-o", "own.jsonl")
    rows = read_rows("own.jsonl")
    texts = [word for caption in sorted(set(CAPTIONS)) for word in ("--text", caption)]
    run("score", models["siglip"], "photos", *texts, "-o", "all.jsonl", "--limit", "3", code=0)
    for row, every in zip(rows[:3], read_rows("all.jsonl"), strict=True):
        (own,) = row["scores"]
        assert own["text"] == row["caption"]
        same = next(one for one in every["scores"] if one["text"] == own["text"])
        assert own["cosine"] == pytest.approx(same["cosine"], abs=1e-5)
        assert own["probability"] == 1
    assert (rows[3]["scores"], rows[3]["error"]) == (None, "not_an_image")
    assert main(["check", "own.jsonl"]) == 0


def test_labels_of_two_towers_are_means_of_their_templates(models):
    labels = [word for label in ("star", "circle", "square") for word in ("--label", label)]
    templates = ("--template", "a {label}", "--template", "{label}, a small {label}")
    run("classify", models["siglip"], "photos", *labels, *templates, "-o", "rows.jsonl")
    engine = open_towers(Checkpoint("m", models["siglip"]), device="cpu")
    vectors = []
    for label in ("star", "circle", "square"):
        mean = engine.encode_texts([f"a {label}", f"{label}, a small {label}"]).mean(axis=0)
        vectors.append(mean / np.linalg.norm(mean))
    run("embed", models["siglip"], "photos", "-o", "images.jsonl")
    for row, image in zip(read_rows("rows.jsonl"), read_rows("images.jsonl"), strict=True):
        assert tuple(row) == CLASSIFY_COLUMNS
        if row["error"] is None:
            logits = engine.scores(np.array(vectors) @ np.array(image["embedding"]))
            softmax = np.exp(logits) / np.exp(logits).sum()
            expected = dict(zip(("star", "circle", "square"), softmax, strict=True))
            found = {one["label"]: one["probability"] for one in row["labels"]}
            assert found == pytest.approx(expected, abs=1e-5)
            assert row["answer"] == row["labels"][0]["label"] == max(expected, key=expected.get)
            assert list(found.values()) == sorted(found.values(), reverse=True)


@pytest.mark.parametrize("output", ["rows.jsonl", "rows.parquet", "rows/"])
def test_runs_in_parts_have_the_rows_of_a_run_at_once(output, models):
    from pgcli.output.reader import read_results

    options = ("--no-timing", "--batch-size", "1")
    for limit in ("2", "5"):
        words = ("photos", "-o", output, "--limit", limit, *options)
        run("embed", models["siglip"], *words, code=0 if limit == "2" else 3)
    run("embed", models["siglip"], "photos", "-o", output, *options)
    run("embed", models["siglip"], "photos", "-o", "once.jsonl", *options)
    found, once = list(read_results(Path(output))), read_rows("once.jsonl")
    for row, expected in zip(found, once, strict=True):
        vectors = [row.pop("embedding"), expected.pop("embedding")]
        assert row == expected
        assert (vectors[0] is None) == (vectors[1] is None)
        if vectors[0] is not None:
            assert np.array_equal(*(np.array(one, np.float32) for one in vectors))
    Image.new("RGB", (9, 9)).save("photos/3.png")
    run("embed", models["siglip"], "photos", "-o", output, "--retry-errors", *options, code=0)
    assert [row["error"] for row in read_results(Path(output))] == [None] * COUNT
    assert main(["check", output]) == 0
