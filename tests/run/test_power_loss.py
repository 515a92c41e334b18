"""After a power loss the rows that were synced remain, and the run resumes to the same output."""

import os
import random
import shutil
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from PIL import Image

import pgcli.run.state.lines
from pgcli.run.comparison import ImageStamps
from pgcli.run.state.lines import RowFile
from pgcli.stores import LocalStore
from tests.support.power_loss import Disk, Killed, tree
from tests.support.stub_runs import KINDS, finish, fresh, rows_of, run_here, start, whole

LOST = 77
STEPS = [29, pytest.param(2, marks=pytest.mark.nightly)]
ALONE = [kind for kind in KINDS if "engines" not in kind]


def run_until_loss(folder, number, output, sources, **options):
    """A run that loses power before a call, and leaves the folder as the disk may have it."""
    pgcli.run.state.lines.SYNC_SECONDS = 0.0
    os.fsync = lambda descriptor: None  # the simulated disk records it
    disk, rng = Disk(folder, number), random.Random(number)
    code = LOST
    with pytest.MonkeyPatch.context() as patch, disk.on(patch), suppress(Killed):
        code = run_here(output, seed=number, syncs=True, **options)
    if disk.wreck is None:
        return code
    disk.left(rng, page=rng.choice((64, 4096)))
    return LOST


def test_saved_data_is_on_disk_when_the_call_returns(tmp_path, monkeypatch):
    store = LocalStore(tmp_path / "state", create=True)
    disk = Disk(store.path, 0)
    with disk.on(monkeypatch):
        store.replace("inputs/0", b"settings" * 100)
        rows = RowFile(store.open_append("rows"), store.path / "rows")
        rows.append(b"a row\n")
        rows.close()
        disk.wreck = tree(store.path)
    for seed in range(9):
        disk.left(random.Random(seed), page=64)
        assert store.read("inputs/0") == b"settings" * 100
        assert store.read("rows") == b"a row\n"


@pytest.mark.parametrize(("start", "stop"), [(24, 32), (24, 40), (32, 48), (40, 48)])
def test_partial_stamp_counts_as_missing(tmp_path, start, stop):
    """Pages of a file are written in any order; an image must not seem to have changed."""
    stamps = ImageStamps(LocalStore(tmp_path))
    for number in range(3):
        stamps.note(number, (1, number, 2))
    stamps.close()
    file = tmp_path / "inputs/images"
    data = file.read_bytes()
    file.write_bytes(data[:start] + bytes(stop - start) + data[stop:])
    assert stamps.read().tolist() == [[1, 0, 2], [0, 0, 0], [1, 2, 2]]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("kind", ALONE)
def test_power_loss_at_any_call(images, kind, step):
    output, options = KINDS[kind]
    rows = whole(images, kind)
    for number in range(1, 2000, step):
        folder = fresh(images, "disk")
        code = start(folder, output, run=partial(run_until_loss, folder, number), **options).wait()
        assert code in (3, LOST), (number, (images / "said").read_text()[-3000:])
        before = Counter(rows_of(folder, output)) if any(folder.iterdir()) else Counter[str]()
        assert before <= Counter(rows), number
        code_resumed, said = finish(folder, output, **options)
        assert code_resumed == 3, (number, said)
        assert rows_of(folder, output) == rows, (number, said)
        if code == 3:
            assert number > 40
            return


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("kind", ["lines", "parquet", "folder"])
def test_power_loss_during_a_retry(images, kind, step):
    output, options = KINDS[kind]
    shutil.copytree(images / "images", images / "kept")
    try:
        first = fresh(images, "first")
        assert finish(first, output, **options)[0] == 3
        good = {row for row in rows_of(first, output) if '"error": null' in row}
        for number in (3, 4):
            Image.new("RGB", (9, 9)).save(images / f"images/{number:03}.png")
        rows = whole(images, kind, code=0)
        retry = {"retry_errors": True, **options}
        for number in range(1, 2000, step):
            shutil.rmtree(images / "disk", ignore_errors=True)
            folder = Path(shutil.copytree(first, images / "disk"))
            run = partial(run_until_loss, folder, number)
            code = start(folder, output, run=run, **retry).wait()
            assert code in (0, LOST), (number, (images / "said").read_text()[-3000:])
            assert good <= set(rows_of(folder, output)), number
            code_again, said = finish(folder, output, **retry)
            assert (code_again, rows_of(folder, output)) == (0, rows), (number, said)
            if code == 0:
                return
    finally:
        shutil.rmtree(images / "images")
        (images / "kept").rename(images / "images")
