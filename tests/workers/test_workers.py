"""Pictures come ahead of the model, in order, and none takes another down with it."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from pgcli import workers
from pgcli.images import ImageDecoder, ImageSpec
from pgcli.records import DecodedImage, Item
from pgcli.workers import prefetch, process, worker
from tests.support.awkward import drawing, encoded, png

PNG = encoded(drawing(), "PNG")
DECODE = ImageDecoder(ImageSpec(16))


def items(count: int) -> list[Item]:
    return [Item(n, str(n), "bytes", data=PNG, kept={"n": n}) for n in range(count)]


def children() -> list[psutil.Process]:
    return psutil.Process().children()


def pretend(item: Item) -> DecodedImage:
    """A look that does as the item's id says; it runs in the worker process."""
    match item.id:
        case "crash":
            os.abort()
        case "hang":
            time.sleep(60)
        case "crash once" if item.path and not Path(item.path).exists():
            Path(item.path).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        case "talk":
            os.write(1, b"noise on stdout")
            sys.stdout.write("more")
            sys.stdout.flush()
        case "slow":
            time.sleep(0.2)
    return DecodedImage(item, 1, 1, np.zeros((1, 1, 3), np.uint8), 0.0)


def pretended(*ids: str) -> list[DecodedImage]:
    named = [Item(n, id_, id_) for n, id_ in enumerate(ids)]
    return list(prefetch(named, pretend, workers=2, total=None))


def codes(pictures: list[DecodedImage]) -> list[str | None]:
    return [picture.fault.code if picture.fault else None for picture in pictures]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_pictures_come_in_order_whoever_looked_at_them(count: int) -> None:
    pictures = list(prefetch(items(20), DECODE, workers=count, total=None))
    alone = [DECODE(item) for item in items(20)]
    assert [picture.item.index for picture in pictures] == list(range(20))
    assert [picture.item.kept["n"] for picture in pictures] == list(range(20))
    for picture, expected in zip(pictures, alone, strict=True):
        assert np.array_equal(picture.pixels, expected.pixels)
        assert picture.item.data is None
    assert not children()


def test_a_few_pictures_start_no_process_and_are_looked_at_one_by_one() -> None:
    asked = []

    def note(item: Item) -> DecodedImage:
        asked.append(item.index)
        return DECODE(item)

    pictures = prefetch(items(3), note, workers=None, total=3)
    next(pictures)
    assert asked == [0]
    assert not children()


def test_a_picture_that_kills_its_process_costs_only_itself() -> None:
    assert codes(pretended("a", "crash", "b", "crash", "c")) == [
        *(None, "worker_crashed", None),
        *("worker_crashed", None),
    ]


def test_workers_that_are_asked_for_guard_a_few_pictures_too() -> None:
    pictures = prefetch(items(2), DECODE, workers=1, total=2)
    assert codes([next(pictures)]) == [None]
    assert len(children()) == 1
    pictures.close()


def test_a_process_that_dies_by_chance_costs_nothing(tmp_path: Path) -> None:
    once = Item(0, "crash once", "x", str(tmp_path / "been here"))
    assert codes(list(prefetch([once], pretend, workers=1, total=None))) == [None]


def test_a_picture_that_takes_for_ever_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "TIME_LIMIT_SECONDS", 3)
    assert codes(pretended("a", "hang", "b")) == [None, "timeout", None]


@pytest.mark.parametrize("side", [1, 224, 896])
def test_pixels_cross_a_pipe_as_they_are_and_may_be_written_to(side: int) -> None:
    ready, waiting = os.pipe()
    pixels = np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)
    sent = DecodedImage(items(1)[0], 5, 6, pixels, 0.5)
    with os.fdopen(waiting, "wb") as outlet, os.fdopen(ready, "rb") as inlet:
        sending = threading.Thread(target=process.send, args=(outlet, sent))
        sending.start()
        came = process.receive(inlet)
        sending.join()
    assert (came.item, came.width, came.height, came.load_ms) == (sent.item, 5, 6, 0.5)
    assert came.pixels.dtype == np.uint8
    assert np.array_equal(came.pixels, pixels)
    came.pixels[0, 0, 0] ^= 1  # torch warns of arrays that must not be written to


def test_a_pipe_that_ends_early_brings_nothing() -> None:
    whole = io.BytesIO()
    process.send(whole, DecodedImage(items(1)[0], 1, 1, np.ones((9, 9, 3), np.uint8), 0.0))
    for length in range(0, len(whole.getvalue()), 7):
        assert process.receive(io.BytesIO(whole.getvalue()[:length])) is None


def test_what_a_decoder_prints_does_not_disturb_the_pictures() -> None:
    assert codes(pretended("talk", "a", "talk", "b")) == [None] * 4


def test_a_worker_keeps_memory_between_pictures_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_", raising=False)
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "1000000")
    pictures = prefetch(items(40), DECODE, workers=1, total=None)
    next(pictures)
    (child,) = children()
    told = child.environ()
    assert told["MALLOC_TRIM_THRESHOLD_"] == worker.KEPT_MEMORY["MALLOC_TRIM_THRESHOLD_"]
    assert told["MALLOC_MMAP_THRESHOLD_"] == "1000000"
    pictures.close()


def test_a_worker_holds_one_picture_at_a_time(tmp_path: Path) -> None:
    drawing(4000, 3000).save(tmp_path / "large.jpg")  # 48 MB in memory
    named = [Item(n, str(n), "x", path=str(tmp_path / "large.jpg")) for n in range(12)]
    pictures = prefetch(named, DECODE, workers=1, total=None)
    next(pictures)
    (child,) = children()
    sizes = []
    for _ in pictures:
        with contextlib.suppress(psutil.Error):  # it ends with the last picture
            sizes.append(child.memory_info().rss / 2**20)
    assert max(sizes) < 200
    assert max(sizes[5:]) < max(sizes[:5]) + 20


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells the peak")
def test_few_bytes_of_very_many_pixels_take_the_room_of_one_picture() -> None:
    data = png(9400, 9400, idat=zlib.compress(bytes(9400 * 1176), 9))
    assert len(data) < 11_000
    before = psutil.Process().memory_info().rss
    pictures = prefetch(
        (Item(n, str(n), "bytes", data=data) for n in range(4)), DECODE, workers=1, total=None
    )
    assert codes([next(pictures)]) == [None]
    (child,) = children()
    status = Path(f"/proc/{child.pid}/status")
    most = 0
    for picture in pictures:
        assert picture.fault is None
        with contextlib.suppress(OSError, IndexError):  # it ends with the last picture
            most = int(re.findall(r"VmHWM:\s*(\d+) kB", status.read_text())[0]) * 1024
    assert 0 < most < 320 * 2**20  # two bytes a pixel and what a worker is without
    assert psutil.Process().memory_info().rss - before < 32 * 2**20


def test_who_stops_early_leaves_no_process_behind() -> None:
    pictures = prefetch(items(5000), DECODE, workers=2, total=None)
    next(pictures)
    assert len(children()) == 2
    started = time.perf_counter()
    pictures.close()
    assert time.perf_counter() - started < 20
    assert not children()


def test_stopping_does_not_wait_for_a_picture_under_way() -> None:
    named = [Item(0, "a", "a"), Item(1, "hang", "x")]
    pictures = prefetch(named, pretend, workers=1, total=None)
    next(pictures)
    started = time.perf_counter()
    pictures.close()
    assert time.perf_counter() - started < 5


def test_no_more_is_read_ahead_than_the_bytes_allow() -> None:
    taken = 0

    def counted() -> Iterator[Item]:
        nonlocal taken
        for item in items(1000):
            taken += 1
            yield item

    square_bytes = 16 * 16 * 3
    ahead = 10 * (len(PNG) + square_bytes)
    pictures = prefetch(counted(), DECODE, workers=2, total=None, ahead_bytes=ahead)
    for _ in range(5):
        next(pictures)
    time.sleep(0.3)
    assert taken <= 5 + 10 + 1
    pictures.close()


def test_a_picture_comes_out_before_the_next_path_came_in() -> None:
    more = threading.Event()

    def slowly() -> Iterator[Item]:
        yield items(1)[0]
        more.wait(20)

    pictures = prefetch(slowly(), DECODE, workers=1, total=None)
    assert next(pictures).item.index == 0
    more.set()
    assert next(pictures, None) is None


def test_what_the_source_raises_comes_after_the_pictures_before_it() -> None:
    def broken() -> Iterator[Item]:
        yield from items(3)
        raise ValueError("line 4")

    pictures = prefetch(broken(), DECODE, workers=2, total=None)
    assert [next(pictures).item.index for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="line 4"):
        next(pictures)
    assert not children()


def test_a_program_without_a_main_guard_works_and_imports_no_torch(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(PNG)
    (tmp_path / "pickle.py").write_text("raise SystemExit('a file of the folder was imported')")
    program = """
        import sys
        sys.path[:] = [entry for entry in sys.path if entry] + [sys.argv[1]]
        from pgcli.images import ImageDecoder, ImageSpec
        from pgcli.records import Item
        from pgcli.workers import prefetch
        decode = ImageDecoder(ImageSpec(8))
        pictures = list(prefetch([Item(0, "a", "a", "a.png")], decode, workers=2, total=None))
        assert [picture.fault for picture in pictures] == [None], pictures
        assert "torch" not in sys.modules
    """
    root = str(Path(workers.__file__).parents[2])
    command = [sys.executable, "-P", "-c", textwrap.dedent(program), root]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=60)


def test_workers_end_when_their_parent_is_killed() -> None:
    program = """
        import sys, time
        from pgcli import workers
        from tests.workers.test_workers import DECODE, items
        pictures = workers.prefetch(items(5000), DECODE, workers=2, total=None)
        next(pictures)
        print("going", flush=True)
        time.sleep(60)
    """
    paths = os.pathsep.join(entry for entry in sys.path if entry)
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"going\n"
    orphans = psutil.Process(parent.pid).children()
    assert len(orphans) == 2
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    _, alive = psutil.wait_procs(orphans, timeout=30)
    assert not alive


def test_ctrl_c_leaves_the_workers_to_their_parent() -> None:
    pictures = prefetch(items(300), DECODE, workers=1, total=None)
    first = next(pictures)
    (child,) = children()
    assert os.getpgid(child.pid) != os.getpgrp()
    child.send_signal(signal.SIGINT)
    assert codes([first, *pictures]) == [None] * 300
