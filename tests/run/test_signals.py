"""A signal ends a run after its rows in progress; a second signal ends it at once."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.stub_runs import finish, kinds, make_images, rows_of, start

KINDS = {
    name: run
    for name, run in kinds(40).items()
    if name not in ("parquet of engines", "folder of engines")
}
SECONDS = 0.01  # for an image


@pytest.fixture
def images(tmp_path) -> Path:
    make_images(tmp_path / "images", 40, broken=[3])
    (tmp_path / "run").mkdir()
    (tmp_path / "computed").touch()
    return tmp_path


def computed(images: Path) -> int:
    return len((images / "computed").read_bytes().splitlines())


def wait_for(claim: Any) -> None:
    deadline = time.monotonic() + 30
    while not claim():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("kind", KINDS)
def test_a_signal_saves_the_rows_in_progress(images, kind, signum):
    output, options = KINDS[kind]
    run = start(images / "run", output, seconds=SECONDS, **options)
    wait_for(lambda: computed(images) > 10)
    send = os.kill if signum == signal.SIGTERM else os.killpg  # a terminal sends it to engines, too
    send(run.pid, signum)
    said = (images / "said").read_text
    assert run.wait() == 128 + signum, said()
    done, saved = computed(images), len(rows_of(images / "run", output))
    early = "engines" in kind  # rows that wait for an earlier one are computed again
    assert 10 < done < 80
    assert done <= saved < 80 or early  # error rows are not computed
    assert "the same command resumes the run" in said()
    assert finish(images / "run", output, **options)[0] == 3
    rows = rows_of(images / "run", output)
    assert len(rows) == 80
    assert computed(images) == 78 or early, "rows that were saved were computed again"
    assert computed(images) <= 78 + max(0, done - saved) + 2  # two error rows are saved


@pytest.mark.parametrize("kind", ["lines", "parquet", "shard", "lines of engines"])
def test_a_second_signal_ends_a_run_at_once(images, kind):
    output, options = KINDS[kind]
    run = start(images / "run", output, seconds=3, **options)
    wait_for(lambda: computed(images))
    time.sleep(0.5)  # the next image, of three seconds, is under way
    run.send_signal(signal.SIGINT)
    wait_for(lambda: "press again" in (images / "said").read_text())
    run.send_signal(signal.SIGINT)
    assert run.wait() == -signal.SIGINT, "it ends with 130 once the rows in progress are saved"
    assert finish(images / "run", output, **options)[0] == 3
    assert len(rows_of(images / "run", output)) == 80
