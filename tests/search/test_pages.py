"""Late interaction over files of pages' vectors: exact, in blocks and threads, in one pass."""

import json

import numpy as np
import pyarrow
import pytest
import torch
from pyarrow import parquet

from pgcli.errors import NoInputError, UsageError
from pgcli.output.schema import page_column, page_text
from pgcli.output.tables import SETTINGS, TableFormat
from pgcli.search.pages import PageFiles, has_pages
from pgcli.search.vector_files import VectorFiles
from tests.support.tiny_colpali import processor
from tests.support.towers import rows_of, unit, write_parquet

SIZE = 16
FORM = {"page_prompt": "Describe the image.", "question_prefix": "Question: "}
#: The numbers of vectors of some pages; None for an error row.
COUNTS = [5, 3, None, 7, 5, 4, 9, 5, 5, 6, 5]


def page_vectors(counts=COUNTS, seed=0):
    """Random vectors of length 1, as float16 keeps them."""
    return [
        None if n is None else unit(n, SIZE, seed + at).astype(np.float16).astype(np.float32)
        for at, n in enumerate(counts)
    ]


def write_pages(file, vectors, *, group=4, model="colpali@1", **form):
    texts = [None if v is None else page_text(v) for v in vectors]
    table = pyarrow.table(
        {
            "index": range(len(vectors)),
            "id": [f"{n}.png" for n in range(len(vectors))],
            "model": [model] * len(vectors),
            "embedding": page_column(texts, SIZE),
        }
    )
    settings = json.dumps({"model": model, **(form or FORM)}).encode()
    parquet.write_table(
        table.replace_schema_metadata({SETTINGS: settings}), file, row_group_size=group
    )
    return file


def reference_scores(hf_folder, questions, vectors):
    """transformers' scores in float64, one page at a time: unpadded."""
    score = processor(hf_folder).score_retrieval
    wide = [torch.from_numpy(question).double() for question in questions]
    return np.concatenate(
        [score(wide, [torch.from_numpy(page).double()]).numpy() for page in vectors], axis=1
    )


@pytest.fixture(scope="module")
def hf_folder(tmp_path_factory):
    from tests.support import tiny

    folder = tmp_path_factory.mktemp("tokenizer")
    tiny.tokenizer_into(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "paligemma"}))
    return folder


@pytest.mark.parametrize("group", [1, 2, 4, 100])
def test_scores_equal_those_of_transformers_in_every_block(group, hf_folder, tmp_path):
    vectors, questions = page_vectors(), [unit(6, SIZE, 50), unit(2, SIZE, 51), -unit(4, SIZE, 52)]
    file = write_pages(tmp_path / "p.parquet", vectors, group=group)
    hits = PageFiles([file]).hits(questions, 4)
    known = [n for n, page in enumerate(vectors) if page is not None]
    scores = reference_scores(hf_folder, questions, [vectors[n] for n in known])
    order = np.argsort(-scores, axis=1, kind="stable")[:, :4]
    assert hits.rows.tolist() == np.array(known)[order].tolist()
    np.testing.assert_allclose(
        hits.similarities, np.take_along_axis(scores, order, axis=1), atol=1e-5
    )


def test_negative_scores_are_not_raised_to_zero(tmp_path):
    """Padding with zeros would put a floor under each product."""
    page = np.tile(np.eye(1, SIZE, dtype=np.float32), (3, 1))
    file = write_pages(tmp_path / "p.parquet", [page])
    hits = PageFiles([file]).hits([-page[:2]], 1)
    assert hits.similarities.tolist() == [[-2.0]]


def test_ties_are_in_the_order_of_rows(tmp_path):
    (page,) = page_vectors([5])
    vectors = [page, *page_vectors([4], seed=9), page[::-1].copy(), page]
    files = PageFiles(
        [
            write_pages(tmp_path / f"{n}.parquet", vectors, group=group)
            for n, group in ((0, 1), (1, 3))
        ]
    )
    assert files.hits([page[:3]], 5).rows.tolist() == [[0, 2, 3, 4, 6]]


def test_fewer_pages_than_hits_and_no_pages(tmp_path):
    file = write_pages(tmp_path / "p.parquet", page_vectors([5, None]))
    files = PageFiles([file])
    assert files.hits([unit(3, SIZE)], 4).rows.tolist() == [[0, -1, -1, -1]]
    assert (files.rows, files.nulls) == (2, 1)
    empty = write_pages(tmp_path / "e.parquet", page_vectors([None, None]))
    with pytest.raises(NoInputError, match="no vectors in"):
        PageFiles([empty]).hits([unit(3, SIZE)], 4)


def test_progress_counts_all_pages(tmp_path):
    seen = []
    PageFiles([write_pages(tmp_path / "p.parquet", page_vectors())]).hits(
        [unit(3, SIZE)], 2, seen.append
    )
    assert sum(seen) == len(COUNTS)


def test_vectors_of_another_form_or_model_are_not_searched(tmp_path):
    one, other, unknown, model = (tmp_path / f"{n}.parquet" for n in range(4))
    write_pages(one, page_vectors())
    write_pages(other, page_vectors(), page_prompt="Describe the image.", question_prefix="Query: ")
    write_pages(unknown, page_vectors(), page_prompt="Describe the image.")
    write_pages(model, page_vectors(), model="colpali@2")
    with pytest.raises(UsageError, match="cannot be compared"):
        PageFiles([one, other])
    with pytest.raises(UsageError, match="cannot be compared"):
        PageFiles([unknown])
    with pytest.raises(UsageError, match="of the model colpali@2"):
        PageFiles([one, model])


def test_numbers_that_are_not_finite_are_refused(tmp_path):
    vectors = page_vectors()
    vectors[3][2, 1] = np.nan
    with pytest.raises(UsageError, match="not finite"):
        PageFiles([write_pages(tmp_path / "p.parquet", vectors)]).hits([unit(3, SIZE)], 2)


def test_files_of_one_vector_a_row_are_told_apart(tmp_path):
    plain = write_parquet(tmp_path / "v.parquet", rows_of(unit(4, SIZE)))
    paged = write_pages(tmp_path / "p.parquet", page_vectors())
    assert [has_pages([plain]), has_pages([paged])] == [False, True]
    with pytest.raises(UsageError, match="not lists of floats"):
        next(iter(VectorFiles([paged])))
    with pytest.raises(UsageError):
        PageFiles([paged, plain])


def test_vectors_of_chosen_pages_are_read_again(tmp_path):
    vectors = page_vectors()
    found = PageFiles([write_pages(tmp_path / "p.parquet", vectors)]).vectors([6, 1])
    assert sorted(found) == [1, 6]
    for row, page in found.items():
        np.testing.assert_array_equal(page, vectors[row])


def test_result_files_of_pages_are_written_and_read_with_all_digits(tmp_path):
    """As merge does; JSON lines are refused."""
    from pgcli.output import load_format
    from pgcli.output.lines import LINES
    from pgcli.rows import RowSchema

    file = write_pages(tmp_path / "p.parquet", page_vectors())
    format = load_format(file)
    assert isinstance(format, TableFormat)
    rows = [*format.read(file)]
    schema = RowSchema(base=("index", "id", "embedding", "model"))
    with (tmp_path / "again.parquet").open("wb") as stream:
        format.write(stream, rows, schema)
    before, after = (parquet.read_table(f)["embedding"] for f in (file, tmp_path / "again.parquet"))
    assert before.equals(after)
    with (
        pytest.raises(UsageError, match="not written as JSON lines"),
        (tmp_path / "x").open("wb") as f,
    ):
        LINES.write(f, rows, schema)
