"""`--limit N` answers the first N rows, counting prompts, in each kind of run."""

import os
import sys
from functools import partial

import pytest

from tests.support.stub_runs import KINDS, finish, fresh, rows_of, whole

LIMITS = (1, 5, 12, 13)  # of 20 rows, two of each image; files of folders have six
SHARDS = {"shard": "0/2", "rows_per_file": 3}


@pytest.mark.parametrize("kind", KINDS)
def test_limit_counts_rows(images, kind):
    expected = whole(images, kind)
    output, options = KINDS[kind]
    for limit in LIMITS:
        folder = fresh(images, "limited")
        code, said = finish(folder, output, limit=limit, **options)
        assert code in (0, 3), said
        assert rows_of(folder, output) == expected[:limit]


def test_limit_counts_the_rows_of_all_shards(images):
    expected = whole(images, "folder")
    for limit in (2, 5, 13):
        folder = fresh(images, "limited")
        for number in (1, 0):
            code, said = finish(folder, "rows/", limit=limit, **SHARDS | {"shard": f"{number}/2"})
            assert code in (0, 3), said
        assert rows_of(folder, "rows/") == expected[:limit]


def redirect(names):
    os.dup2(os.open(names, os.O_RDONLY), 0)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    os.dup2(os.open("printed", os.O_WRONLY | os.O_CREAT), 1)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115


@pytest.mark.parametrize("options", [{}, {"engines": 2}], ids=["alone", "engines"])
@pytest.mark.parametrize("source", ["../images", "-"])
@pytest.mark.parametrize("output", ["-", "rows.txt", "rows.jsonl"])
def test_limit_counts_rows_of_a_stream(images, output, source, options):
    names = [f"../images/{number:03}.png\n" for number in range(10)]
    (images / "names").write_text("".join(names))
    folder = fresh(images, "limited")
    format = {"format": "text"} if output == "rows.txt" else {}
    code, said = finish(
        folder,
        output,
        [source],
        before=partial(redirect, images / "names"),
        limit=5,
        **format,
        **options,
    )
    assert code == 0, said
    file = folder / ("printed" if output == "-" else output)
    assert file.read_text().count("\n") == 5
