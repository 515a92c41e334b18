"""Files of vectors: Parquet, folders of it and JSON lines, and errors."""

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from pgcli.errors import NoInputError, UsageError
from pgcli.search import duplicates
from pgcli.search.nearest import nearest_in_blocks, normalised
from pgcli.search.rows import group_rows, hit_rows
from pgcli.search.vector_files import VectorFiles
from tests.support.towers import rows_of, unit, write_jsonl, write_parquet


def search(files, queries, k=3):
    hits = nearest_in_blocks(normalised(queries, "query"), files, k)
    return hit_rows([str(number) for number in range(len(queries))], hits, files)


def hits(files, queries, k=3):
    rows = search(files, queries, k)
    return [[row["id"] for row in rows if row["query"] == str(n)] for n in range(len(queries))]


def read_all(files):
    return np.concatenate([rows for rows, _ in files]).tolist()


def expected(queries, vectors, k=3):
    order = np.argsort(-(queries.astype(float) @ vectors.astype(float).T), axis=1, kind="stable")
    return [[f"{row}.jpg" for row in one[:k]] for one in order]


FLOAT32 = pyarrow.float32()
KINDS = {
    "fixed": pyarrow.list_(FLOAT32, 6),
    "float16": pyarrow.list_(pyarrow.float16(), 6),
    "list": pyarrow.list_(FLOAT32),
    "large": pyarrow.large_list(pyarrow.float64()),
}


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_are_read_from_every_list_type(tmp_path, kind):
    vectors = unit(40)
    file = write_parquet(tmp_path / "v.parquet", rows_of(vectors), KINDS[kind], row_group_size=7)
    assert hits(VectorFiles([file]), vectors[:3]) == expected(vectors[:3], vectors)


def test_files_and_folders_are_searched_in_their_order(tmp_path):
    vectors = unit(30)
    folder = tmp_path / "parts"
    folder.mkdir()
    write_parquet(folder / "part-1.parquet", rows_of(vectors[20:], 20))
    write_parquet(folder / "part-0.parquet", rows_of(vectors[10:20], 10))
    lines = write_jsonl(tmp_path / "v.jsonl", rows_of(vectors[:10]))
    files = VectorFiles([lines, folder])
    assert hits(files, vectors[:4], 5) == expected(vectors[:4], vectors, 5)
    assert {row["path"] for row in search(files, vectors[:4], 5)} == {0, 1}
    assert files.model == "towers@1"
    assert read_all(files) == list(range(30))


@pytest.mark.parametrize("write", [write_jsonl, write_parquet])
def test_rows_with_errors_are_skipped_and_counted(tmp_path, write):
    vectors = unit(10)
    some = [None if number in (0, 4) else vector for number, vector in enumerate(vectors)]
    file = write(tmp_path / ("v.jsonl" if write is write_jsonl else "v.parquet"), rows_of(some))
    files = VectorFiles([file])
    assert not {"0.jpg", "4.jpg"}.intersection(*hits(files, vectors[4:5], 9))
    assert (files.rows, files.nulls) == (10, 2)


def test_a_file_without_any_vector_is_no_input(tmp_path):
    file = write_jsonl(tmp_path / "v.jsonl", rows_of([None, None]))
    with pytest.raises(NoInputError, match="2 rows"):
        next(iter(VectorFiles([file])))
    file.write_text("")
    with pytest.raises(NoInputError, match="no vectors"):
        next(iter(VectorFiles([file])))


def test_a_line_that_is_still_written_is_left_out(tmp_path):
    file = write_jsonl(tmp_path / "v.jsonl", rows_of(unit(3)))
    file.write_bytes(file.read_bytes()[:-20])
    assert len(read_all(VectorFiles([file]))) == 2
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:2]).rstrip(b"\n"))
    assert len(read_all(VectorFiles([file]))) == 2


def test_rows_of_texts_and_rows_without_names_are_found(tmp_path):
    vectors = unit(2)
    rows = [{"text": f"text {n}", "embedding": v.tolist()} for n, v in enumerate(vectors)]
    file = write_jsonl(tmp_path / "v.jsonl", rows)
    (hit,) = search(VectorFiles([file]), vectors[1:], 1)
    named = {"id": "1", "image": None, "text": "text 1", "index": -1, "path": 0}
    assert hit == {"query": "0", "rank": 1, **named, "similarity": 1.0, "truncated": False}


def broken(vectors, place, value):
    rows = rows_of(vectors)
    rows[place]["embedding"] = value
    return rows


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([0.0] * 6, "row 3 is zero"),
        ([1.0, float("nan"), 0, 0, 0, 0], "row 3 has numbers that are not finite"),
        ([1.0, 1e200, 0, 0, 0, 0], "row 3 has numbers that are not finite"),
        ([1.0, 0.0], "row 3 has 2 dimensions, earlier vectors have 6"),
        ([], "row 3 has 0 dimensions, earlier vectors have 6"),
        (["a"] * 6, "changed from number to string in row 2"),
        ([True] * 6, "changed from number to boolean in row 2"),
        ([10**400] * 6, "row 3 has numbers that are not finite"),
        ("text", "changed from array to string in row 2"),
        ({"a": 1}, "changed from array to object in row 2"),
    ],
)
def test_a_wrong_vector_is_named(tmp_path, value, message):
    file = write_jsonl(tmp_path / "v.jsonl", broken(unit(5), 2, value))
    with pytest.raises(UsageError, match=message):
        read_all(VectorFiles([file]))


def test_files_of_two_sizes_or_models_raise_errors(tmp_path):
    one = write_jsonl(tmp_path / "one.jsonl", rows_of(unit(3)))
    small = write_jsonl(tmp_path / "small.jsonl", rows_of(unit(3, 4)))
    other = write_jsonl(tmp_path / "other.jsonl", rows_of(unit(3), model="towers@2"))
    with pytest.raises(UsageError, match="row 4 has 4 dimensions, earlier vectors have 6"):
        read_all(VectorFiles([one, small]))
    with pytest.raises(UsageError, match="of the model towers@2, earlier files of towers@1"):
        read_all(VectorFiles([one, other]))


@pytest.mark.parametrize(
    "content", [b"[1]\n", b"\xff\n", b"{\n{}\n", b'{"embedding":' + b"[" * 9_000_000 + b"\n", b"\n"]
)
def test_lines_without_vectors_raise_errors(tmp_path, content):
    (tmp_path / "v.jsonl").write_bytes(content)
    with pytest.raises(UsageError):
        read_all(VectorFiles([tmp_path / "v.jsonl"]))


@pytest.mark.parametrize("kept", [0, 3, 100, -1])
def test_truncated_parquet_file_raises_an_error(tmp_path, kept):
    file = write_parquet(tmp_path / "v.parquet", rows_of(unit(20)))
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(UsageError, match="cannot be read"):
        read_all(VectorFiles([file]))


def test_parquet_of_other_columns_and_types_raises_errors(tmp_path):
    file = tmp_path / "v.parquet"
    parquet.write_table(pyarrow.table({"id": ["a"], "clip_emb": [[1.0, 0.0]]}), file)
    with pytest.raises(UsageError, match="has no column embedding") as caught:
        read_all(VectorFiles([file]))
    assert caught.value.hint.startswith(
        "its columns are: id, clip_emb; name what pgcli embed wrote"
    )
    lines = tmp_path / "v.jsonl"
    lines.write_text('{"id": "a", "clip_emb": [1.0, 0.0]}\n')
    with pytest.raises(NoInputError) as caught:
        read_all(VectorFiles([lines]))
    assert caught.value.hint == "pgcli embed writes them; its columns are: id, clip_emb"
    parquet.write_table(pyarrow.table({"embedding": ["a"]}), file)
    with pytest.raises(UsageError, match="has the type string, not lists of floats"):
        read_all(VectorFiles([file]))


def test_paths_without_vectors_raise_errors(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "v.csv").write_text("id,embedding\n")
    (tmp_path / "begun.parquet.pgcli").mkdir()
    np.save(tmp_path / "img_emb_0.npy", unit(2))
    for name, message in (
        ("empty", "has no result files"),
        ("v.csv", "cannot be read: JSON parse error"),
        ("none.parquet", "does not exist"),
        ("img_emb_0.npy", "is a file of NumPy arrays, not of rows"),
        ("begun.parquet", "its run is not finished"),
    ):
        with pytest.raises(UsageError, match=message):
            read_all(VectorFiles([tmp_path / name]))


def test_duplicates_of_several_files_are_grouped(tmp_path):
    vectors = unit(12, 16)
    one = write_parquet(tmp_path / "one.parquet", rows_of(vectors))
    copies = [vectors[3] + 0.01, None, vectors[8]]
    copies = [None if copy is None else copy / np.linalg.norm(copy) for copy in copies]
    other = write_parquet(tmp_path / "other.parquet", rows_of(copies, 100))
    files = VectorFiles([one, other])
    numbers, read = (np.concatenate(column) for column in zip(*files, strict=True))
    rows = group_rows([numbers[group] for group in duplicates(read)], files)
    assert [(row["group"], row["id"]) for row in rows] == [
        *((1, "3.jpg"), (1, "100.jpg")),
        *((2, "8.jpg"), (2, "102.jpg")),
    ]
    assert rows[0]["similarity"] == 1
    assert 0.94 < rows[1]["similarity"] < 1
    assert rows[3]["similarity"] == pytest.approx(1, abs=1e-6)
