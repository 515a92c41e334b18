"""The faiss index of `search --index`, beside the exact search."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from pgcli.errors import OutputFailed, UsageError
from pgcli.search import duplicates
from pgcli.search import index as faiss_index
from pgcli.search.index import indexed_duplicates, open_indexes, search_indexes
from pgcli.search.nearest import nearest_in_blocks, normalised
from pgcli.search.vector_files import VectorFiles
from tests.support.vectors import rows_of, unit, write_jsonl, write_parquet

pytest.importorskip("faiss", reason="a development dependency")


@pytest.fixture
def vectors():
    """Vectors in clusters, the last of which are near-duplicates of the first."""
    random = np.random.default_rng(1)
    centres = random.standard_normal((20, 16))[random.integers(0, 20, 900)]
    found = centres + 0.3 * random.standard_normal((900, 16))
    found[-30:] = found[:30] + 0.01
    return normalised(found, "vector")


@pytest.fixture
def files(tmp_path, vectors):
    rows = rows_of([None if n == 5 else vector for n, vector in enumerate(vectors)])
    folder = tmp_path / "parts"
    folder.mkdir()
    write_parquet(folder / "a.parquet", rows[:300], row_group_size=100)
    write_parquet(folder / "b.parquet", rows[300:600])
    return VectorFiles([folder, write_jsonl(tmp_path / "v.jsonl", rows[600:])])


@pytest.fixture(params=["all", "clusters"])
def kind(request, monkeypatch):
    if request.param == "clusters":
        monkeypatch.setattr(faiss_index, "MIN_CLUSTERED", 100)
    return request.param


def opened(files):
    told = []
    return open_indexes(files, told.append, iter), told


def test_index_finds_what_the_exact_search_finds(kind, files, vectors):
    indexes, told = opened(files)
    assert [Path(line.split()[0]).name for line in told] == ["parts.faiss", "v.jsonl.faiss"]
    queries = vectors[100:110]
    exact, found = nearest_in_blocks(queries, files, 5), search_indexes(queries, indexes, 5)
    assert found.rows.tolist() == exact.rows.tolist()
    assert np.allclose(found.similarities, exact.similarities, atol=1e-6)
    assert {type(index.index).__name__ for index in indexes} == {
        "IndexIDMap" if kind == "all" else "IndexIVFFlat"
    }


def test_index_finds_the_same_near_duplicates(kind, files):
    indexes, _ = opened(files)
    numbers, read = (np.concatenate(column) for column in zip(*files, strict=True))
    exact = [numbers[group].tolist() for group in duplicates(read, 0.99)]
    found = indexed_duplicates(iter(files), indexes, 0.99)
    assert [group.tolist() for group in found] == exact


def test_index_is_loaded_until_its_vectors_change(kind, files, vectors):
    first, _ = opened(files)
    again, told = opened(files)
    assert told == []
    queries = vectors[:3]
    for one, other in zip(
        search_indexes(queries, again, 3), search_indexes(queries, first, 3), strict=True
    ):
        assert np.array_equal(one, other)
    assert [(one.rows, one.nulls) for one in again] == [(one.rows, one.nulls) for one in first]
    assert sum(one.nulls for one in again) == 1
    changed = files.paths[0] / "b.parquet"
    write_parquet(changed, rows_of(vectors[:50]))
    _, told = opened(VectorFiles(files.paths))
    assert len(told) == 1
    assert "parts.faiss is older than its vectors" in told[0]


def test_least_similarity_leaves_out_hits_of_the_index(files, vectors):
    indexes, _ = opened(files)
    rows, similarities = search_indexes(vectors[:1], indexes, 50, min_similarity=0.9)
    assert 0 < np.count_nonzero(rows >= 0) < 50
    assert np.nanmin(similarities) >= 0.9
    assert np.array_equal(rows >= 0, ~np.isnan(similarities))


@pytest.mark.parametrize("damage", ["cut", "noise", "text", "no description", "wrong description"])
def test_a_damaged_index_is_built_again(files, damage):
    opened(files)
    file = faiss_index.index_path(files.paths[1])
    about = faiss_index.description(file)
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:50])
    elif damage == "noise":
        file.write_bytes(b"\xff" * file.stat().st_size)
    elif damage == "text":
        about.write_text("[1]")
    elif damage == "no description":
        about.unlink()
    else:
        about.write_text(json.dumps(json.loads(about.read_text()) | {"rows": [1]}))
    _, told = opened(files)
    assert len(told) == 1


def test_indexes_of_two_models_are_refused(tmp_path):
    one = write_jsonl(tmp_path / "one.jsonl", rows_of(unit(5)))
    other = write_jsonl(tmp_path / "other.jsonl", rows_of(unit(5), model="others"))
    with pytest.raises(UsageError, match="of the model others"):
        opened(VectorFiles([one, other]))


def test_an_index_that_cannot_be_written_is_an_output_error(files, monkeypatch):
    def full(*names, **folders):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OutputFailed, match=r"parts\.faiss cannot be written"):
        opened(files)
    assert not list(files.paths[0].parent.glob(".*"))


def test_without_faiss_the_extra_is_named(files, monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(UsageError) as refused:
        opened(files)
    assert "[index]" in refused.value.hint
