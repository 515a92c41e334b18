"""pgcli.load("demo-towers"): embed, score, classify and search from Python."""

import numpy as np
import pytest

import pgcli
from pgcli.errors import UsageError
from tests.support import tiny, towers
from tests.support.runs import EXAMPLES

TEXTS = ["a red star", "a blue square"]


@pytest.fixture(scope="module")
def engine() -> pgcli.Engine:
    return pgcli.load("demo-towers", device="cpu")


def test_embeddings_are_one_array(engine):
    images = engine.embed([EXAMPLES / "one.png", b"no image", EXAMPLES / "blue.png"])
    texts = engine.embed(text=TEXTS)
    assert (images.dtype, images.shape[0], texts.shape) == (np.float32, 3, (2, images.shape[1]))
    assert np.isnan(images[1]).all()
    assert np.allclose(np.linalg.norm(images[[0, 2]], axis=1), 1, atol=1e-6)
    assert np.allclose(engine.embed(text=TEXTS[0])[0], texts[0], atol=1e-6)


def test_text_that_is_not_unicode_is_embedded_as_printed(engine):
    found = engine.embed(text=["a \ud800 star", "a \ufffd star"])
    assert np.array_equal(found[0], found[1])


def test_scores_labels_and_hits_of_the_built_in_model(engine):
    named = [EXAMPLES / "one.png", EXAMPLES / "blue.png"]  # red stars; a blue square and others
    best = [max(row.scores or (), key=lambda one: one.cosine) for row in engine.score(named, TEXTS)]
    assert [one.text for one in best] == TEXTS
    rows = list(engine.classify(named, ["red star", "blue square"], template="a {label}"))
    assert [row.answer for row in rows] == ["red star", "blue square"]
    hits = engine.search(engine.embed(named), TEXTS, k=1)
    assert hits.rows.tolist() == [[0], [1]]
    assert pgcli.Results(rows).to_arrow().column_names[5:7] == ["answer", "labels"]


def test_each_row_in_memory_is_scored_with_its_own_text(engine):
    rows = [{"image": EXAMPLES / "one.png", "caption": "a red star"}]
    (row,) = engine.score(rows, text_column="caption")
    assert row.scores is not None
    assert row.scores[0].text == "a red star"


def test_methods_that_a_model_does_not_have_are_rejected(engine, tmp_path):
    with pytest.raises(UsageError, match="cannot caption"):
        engine.caption(EXAMPLES)
    classifier = pgcli.load(towers.checkpoint_into(tmp_path / "vit", "vit"), device="cpu")
    assert next(classifier.classify(EXAMPLES / "one.png")).answer in ("circle", "square", "star")
    for call in (lambda: classifier.embed(EXAMPLES), lambda: classifier.score(EXAMPLES, "a")):
        with pytest.raises(UsageError, match="cannot"):
            call()
    with pytest.raises(UsageError, match="no label"):
        classifier.classify(EXAMPLES, ["bird"])


def test_paligemma_embeds_with_the_tower_that_it_has(tmp_path):
    folder = tiny.checkpoint_into(tmp_path / "model")
    engine = pgcli.load(folder, device="cpu")
    found = engine.embed(EXAMPLES / "one.png")
    from pgcli.checkpoints.find import Checkpoint
    from pgcli.towers.engine import open_towers

    alone = pgcli.Engine(open_towers(Checkpoint("m", folder), device="cpu")).embed(
        EXAMPLES / "one.png"
    )
    assert np.allclose(found, alone, atol=1e-6)
    with pytest.raises(UsageError, match="cannot embed texts"):
        engine.embed(text="a")


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_results_equal_their_file(engine, tmp_path, ending):
    images = [EXAMPLES / "one.png", b"no image", EXAMPLES / "blue.png"]
    for name, found in (
        ("scores", engine.score(images, TEXTS)),
        ("labels", engine.classify(images, ["red star", "blue square"])),
    ):
        results = pgcli.Results(found)
        results.save(tmp_path / f"{name}.{ending}")
        assert pgcli.read(tmp_path / f"{name}.{ending}") == results
