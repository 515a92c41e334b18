"""Images are decoded ahead of the model, in order, and independently of each other."""

from __future__ import annotations

import contextlib
import errno
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
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from PIL import Image

from pgcli.errors import NoUsableDevice
from pgcli.images import ImageDecoder, ImageLimits, ImageSpec, child_process
from pgcli.images import worker as worker_module
from pgcli.images.pool import decode_ahead
from pgcli.images.worker import without_data
from pgcli.records import DecodedImage, Item
from tests.images.decoders import ScriptedDecoder, worker_processes
from tests.support import awkward
from tests.support.awkward import chunk, drawing, encoded, png
from tests.support.runs import ends_soon

PNG = encoded(drawing(), "PNG")
DECODE = ImageDecoder(ImageSpec(16))


def items(count: int) -> list[Item]:
    return [Item(n, str(n), "bytes", data=PNG, kept={"n": n}) for n in range(count)]


def scripted(*ids: str) -> list[DecodedImage]:
    named = [Item(n, id_, id_) for n, id_ in enumerate(ids)]
    return list(decode_ahead(named, ScriptedDecoder(), workers=2, total=None))


def codes(images: list[DecodedImage]) -> list[str | None]:
    return [image.fault.code if image.fault else None for image in images]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_images_are_in_order_for_any_number_of_workers(count):
    alone = [DECODE(item) for item in items(20)]
    entries: list[Item | DecodedImage] = [*items(20)]
    entries[1::3] = [replace(image, item=without_data(image.item)) for image in alone[1::3]]
    images = list(decode_ahead(entries, DECODE, workers=count, total=None))
    assert [image.item.index for image in images] == list(range(20))
    assert [image.item.kept["n"] for image in images] == list(range(20))
    for image, expected in zip(images, alone, strict=True):
        assert np.array_equal(image.pixels, expected.pixels)
        assert image.item.data is None
    assert not worker_processes()


def several(*ids: str, **options: Any) -> list[str | None]:
    """The codes of images with these ids, after so many others that several wait in a process."""
    named = [Item(n, id_, id_) for n, id_ in enumerate(["a"] * 40 + [*ids])]
    images = list(decode_ahead(named, ScriptedDecoder(), total=None, **options))
    assert [image.item for image in images] == named
    assert codes(images[:40]) == [None] * 40
    return codes(images[40:])


def test_crash_with_images_waiting_fails_one_row():
    ids = ["a", "crash", *"aa", "fault", "crash", *"aaa"]
    crashed = [None, "worker_crashed", None, None, "missing", "worker_crashed", *[None] * 3]
    assert several(*ids, workers=1) == crashed


class OneAtATime:
    """A reader that holds its lock until an item is decoded, as for large images."""

    fetch_threads = 4

    def __init__(self) -> None:
        self._large = threading.Lock()

    def __copy__(self) -> OneAtATime:
        return self

    @contextlib.contextmanager
    def fetched(self, item: Item) -> Iterator[Item]:
        with self._large:
            yield replace(item, data=PNG)

    def stop(self) -> None:
        pass


def test_closing_releases_the_bytes_of_fetched_images():
    named = [Item(0, "hang", "x")] + [Item(n, "a", "a") for n in range(1, 30)]
    images = decode_ahead(
        named, ScriptedDecoder(), workers=2, total=None, reader=OneAtATime(), pauses=True
    )
    assert next(images) is None
    with ends_soon():
        images.close()
    assert not worker_processes()


def test_process_that_dies_once_costs_nothing(tmp_path):
    once = Item(0, "crash once", "x", str(tmp_path / "been here"))
    assert codes(list(decode_ahead([once], ScriptedDecoder(), workers=1, total=None))) == [None]


def test_image_that_takes_too_much_processor_time_is_a_timeout(monkeypatch):
    monkeypatch.setattr(worker_module, "PROCESSOR_SECONDS", 0.5)
    images = scripted("a", "compute", "b")
    assert codes(images) == [None, "timeout", None]
    assert images[1].fault.message.endswith("0.5 seconds of processor time.")


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import os; os.kill(os.getpid(), 9)", "it was killed by SIGKILL, probably for lack of"),
        ("import nothing_here", "ModuleNotFoundError: No module named 'nothing_here'"),
        ("raise SystemExit(7)", "it ended with exit code 7"),
    ],
)
def test_process_that_cannot_start_is_explained(monkeypatch, program, reason):
    monkeypatch.setattr(child_process, "_PROGRAM", program)
    with pytest.raises(NoUsableDevice) as refused:
        list(decode_ahead(items(3), DECODE, workers=2, total=None))
    assert reason in str(refused.value)
    assert "--workers" in refused.value.hint
    assert not worker_processes()


def test_process_that_is_killed_at_its_start_is_started_once_more(monkeypatch):
    started, start = [], subprocess.Popen

    def kill_first(*words: Any, **more: Any) -> Any:
        started.append(process := start(*words, **more))
        if len(started) == 1:
            process.kill()
        return process

    monkeypatch.setattr(subprocess, "Popen", kill_first)
    images = list(decode_ahead(items(3), DECODE, workers=1, total=None))
    assert [image.fault for image in images] == [None] * 3
    assert len(started) == 2


def test_process_that_the_system_refuses_is_explained(monkeypatch):
    started, start = [], subprocess.Popen

    def refuse_second(*words: Any, **more: Any) -> Any:
        if started:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        started.append(start(*words, **more))
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", refuse_second)
    with pytest.raises(NoUsableDevice, match="cannot start: Resource temporarily unavailable"):
        list(decode_ahead(items(3), DECODE, workers=2, total=None))
    assert not worker_processes()


@pytest.mark.nightly
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux reports the peak")
def test_small_file_of_many_pixels_takes_the_memory_of_one_image():
    data = png(9400, 9400, idat=zlib.compress(bytes(9400 * 1176), 9))
    assert len(data) < 11_000
    before = psutil.Process().memory_info().rss
    images = decode_ahead(
        (Item(n, str(n), "bytes", data=data) for n in range(4)), DECODE, workers=1, total=None
    )
    assert codes([next(images)]) == [None]
    (child,) = worker_processes()
    status = Path(f"/proc/{child.pid}/status")
    most = 0
    for image in images:
        assert image.fault is None
        with contextlib.suppress(OSError, IndexError):  # it ends with the last image
            most = int(re.findall(r"VmHWM:\s*(\d+) kB", status.read_text())[0]) * 1024
    assert 0 < most < 320 * 2**20  # two bytes per pixel, plus the memory of an idle worker
    assert psutil.Process().memory_info().rss - before < 32 * 2**20


@pytest.mark.slow
def test_large_images_wait_for_each_other(tmp_path):
    large = [Item(n, "large", "x", str(tmp_path / "one")) for n in range(8)]
    assert codes(list(decode_ahead(large, ScriptedDecoder(), workers=4, total=None))) == [None] * 8


def endless(kind: str) -> bytes:
    """A small file with nearly as many pixels as the default limit allows."""
    if kind == "alpha":  # four copies were in memory, with four bytes a pixel
        whole = png(9400, 9400, idat=zlib.compress(bytes(9400 * 1176), 9))
        return whole[:33] + chunk(b"tRNS", b"\0\0") + whole[33:]
    return encoded(Image.new("CMYK", (9400, 9400)), "JPEG", progressive=True, quality=5)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["alpha", "progressive"])
def test_endless_images_take_little_more_memory_than_one(kind):
    data = endless(kind)
    same = [Item(n, str(n), "bytes", data=data) for n in range(8)]
    before = psutil.Process().memory_full_info().pss
    images = decode_ahead(same, DECODE, workers=4, total=None)
    most, done = 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.wait(0.1):
            taken = psutil.Process().memory_full_info().pss - before
            for process in worker_processes():
                with contextlib.suppress(psutil.Error):
                    taken += process.memory_full_info().pss
            most = max(most, taken)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        assert codes(list(images)) == [None] * len(same)
    finally:
        done.set()
        watching.join()
    assert 0 < most < 1.8 * 2**30


def test_stopped_run_does_not_wait_for_an_image_being_decoded():
    named = [Item(0, "a", "a"), Item(1, "hang", "x")]
    stopped = threading.Event()
    images = decode_ahead(
        named, ScriptedDecoder(), workers=1, total=None, should_stop=stopped.is_set
    )
    next(images)
    threading.Timer(0.5, stopped.set).start()
    began = time.monotonic()
    assert list(images) == []
    assert time.monotonic() - began < 30  # it hangs for 60 seconds
    assert not worker_processes()


def test_span_of_a_file_is_decoded(tmp_path):
    (tmp_path / "a.tar").write_bytes(b"before" + PNG + b"after")
    member = Item(0, "0", "x", str(tmp_path / "a.tar"), span=(6, len(PNG)), root=str(tmp_path))
    outside = replace(member, root=str(tmp_path / "b"))
    for count in (0, 1):
        images = list(decode_ahead([member, outside], DECODE, workers=count, total=None))
        assert codes(images) == [None, "path_not_allowed"]
        assert np.array_equal(images[0].pixels, DECODE(items(1)[0]).pixels)


SIDES = {
    "PPM": b"P6 2147483648 1 255 ",
    "PGM": b"P5 1 4294967297 255 ",
    "TIFF": awkward.tiff(2**31, 1),
    "BMP": awkward.bmp(1, -(2**31)),
}


@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize("max_pixels", [10**6, 10**12])
@pytest.mark.parametrize("format_", SIDES)
def test_side_beyond_int32_is_too_many_pixels(format_, max_pixels, count):
    decoder = ImageDecoder(ImageSpec(16), ImageLimits(max_pixels=max_pixels))
    item = Item(0, "0", "bytes", data=SIDES[format_])
    (image,) = decode_ahead([item], decoder, workers=count, total=None)
    assert codes([image]) == ["too_many_pixels"]
    assert (image.width, image.height) == (None, None)
    assert ("--max-pixels" in str(image.fault)) == (max_pixels == 10**6)


def test_closing_early_leaves_no_process():
    images = decode_ahead(items(5000), DECODE, workers=2, total=None)
    next(images)
    assert len(worker_processes()) == 2
    with ends_soon():
        images.close()
    assert not worker_processes()


def test_items_are_read_ahead_up_to_max_bytes():
    taken = 0

    def counted() -> Iterator[Item]:
        nonlocal taken
        for item in items(1000):
            taken += 1
            yield item

    pixel_bytes = 16 * 16 * 3
    max_bytes = 10 * (len(PNG) + pixel_bytes)
    images = decode_ahead(counted(), DECODE, workers=2, total=None, max_bytes=max_bytes)
    for _ in range(5):
        next(images)
    time.sleep(0.3)
    decoded = max_bytes // pixel_bytes  # decoded images no longer hold their files' bytes
    assert 5 + 10 < taken <= 5 + decoded + 1
    images.close()


def test_exception_of_the_items_comes_after_the_images_before_it():
    def broken() -> Iterator[Item]:
        yield from items(3)
        raise ValueError("line 4")

    images = decode_ahead(broken(), DECODE, workers=2, total=None)
    assert [next(images).item.index for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="line 4"):
        next(images)
    assert not worker_processes()


def test_program_without_a_main_guard_works_and_imports_no_torch(tmp_path):
    (tmp_path / "a.png").write_bytes(PNG)
    (tmp_path / "pickle.py").write_text("raise SystemExit('a file of the folder was imported')")
    program = """
        import sys
        sys.path[:] = [entry for entry in sys.path if entry] + [sys.argv[1]]
        from pgcli.images import ImageDecoder, ImageSpec
        from pgcli.records import Item
        from pgcli.images.pool import decode_ahead
        decode = ImageDecoder(ImageSpec(8))
        images = list(decode_ahead([Item(0, "a", "a", "a.png")], decode, workers=2, total=None))
        assert [image.fault for image in images] == [None], images
        assert "torch" not in sys.modules
    """
    root = str(Path(worker_module.__file__).parents[2])
    command = [sys.executable, "-P", "-c", textwrap.dedent(program), root]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=60)


@pytest.mark.slow
def test_workers_end_when_their_parent_is_killed():
    program = """
        import sys, time
        from pgcli.images.pool import decode_ahead
        from tests.images.test_pool import DECODE, items
        images = decode_ahead(items(5000), DECODE, workers=2, total=None)
        next(images)
        print("going", flush=True)
        time.sleep(60)
    """
    paths = os.pathsep.join(entry for entry in sys.path if entry)
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
    )
    assert parent.stdout.readline() == b"going\n"
    orphans = psutil.Process(parent.pid).children()
    assert len(orphans) == 2
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    _, alive = psutil.wait_procs(orphans, timeout=30)
    assert not alive


def test_ctrl_c_does_not_end_workers():
    images = decode_ahead(items(300), DECODE, workers=1, total=None)
    first = next(images)
    (child,) = worker_processes()
    assert os.getpgid(child.pid) != os.getpgrp()
    child.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert worker_processes() == [child]
    assert codes([first, *images]) == [None] * 300
