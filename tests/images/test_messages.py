"""Messages between decoding processes and their parent: valid ones arrive, others are errors."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pgcli
from pgcli.images import ImageDecoder, ImageSpec
from pgcli.images import worker as worker_module
from pgcli.images.child_process import Connection, ProcessFailed
from pgcli.images.pool import decode_ahead
from pgcli.images.worker import image_from, image_message
from pgcli.records import DecodedImage, Fault, Item
from tests.images.decoders import REPLY, HostileDecoder, ScriptedDecoder, frame, reply

ITEM = Item(7, "id", "shown", "path", b"bytes", prompts=("p",), kept={"n": 1}, fields={"m": 2})


@pytest.fixture
def ends() -> Iterator[tuple[Connection, Connection]]:
    """The two ends of a connection."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Connection(ours), Connection(theirs)


def crossed(ends: tuple[Connection, Connection], image: DecodedImage, side: int) -> DecodedImage:
    """The image after it has crossed the connection."""
    sending = threading.Thread(target=ends[0].send, args=image_message(image))
    sending.start()
    header, data = ends[1].receive(2**24)
    sending.join()
    return image_from(header, data, image.item, ImageDecoder(ImageSpec(side)))


@pytest.mark.parametrize("side", [1, 224, 896])
def test_pixels_cross_a_connection_unchanged_and_writable(ends, side):
    pixels = np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)
    received = crossed(ends, DecodedImage(ITEM, 5, 6, pixels, 0.5), side)
    assert (received.width, received.height, received.load_ms) == (5, 6, 0.5)
    assert (received.item.data, received.item.kept) == (None, ITEM.kept)
    assert np.array_equal(received.pixels, pixels)
    received.pixels[0, 0, 0] ^= 1  # torch warns about read-only arrays


@pytest.mark.parametrize("size", [None, (5, 6)])
def test_faults_cross_a_connection(ends, size):
    fault = Fault("truncated", "\u00e9 \x1b and \ud800")
    received = crossed(ends, DecodedImage(ITEM, *(size or (None, None)), None, 0.5, fault), 8)
    assert (received.fault, received.pixels) == (fault, None)
    assert (received.width, received.height) == (size or (None, None))


def received(raw: bytes, max_bytes: int = 100) -> tuple[dict[str, Any], bytes]:
    """The parent's result for a process that sends these bytes and ends."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            theirs.sendall(raw)
        return Connection(ours).receive(max_bytes, 60)


def test_process_that_ends_within_a_message_is_noticed():
    whole = reply()
    assert received(whole) == (REPLY, bytes(3))
    for length in range(len(whole)):
        with pytest.raises(ProcessFailed):
            received(whole[:length])


@pytest.mark.parametrize(
    "raw",
    [
        frame(b"not json"),
        frame(b""),
        frame(b"[1]"),
        frame(b"[" * 10_000),
        frame(b"\xff\xfe"),
        frame(b"{}", bytes(101)),
        frame(b"{}", size=2**32 - 1),
        (2**24 + 1).to_bytes(4, "big") + bytes(4) + b"{}",
        b"\xff" * 100,
    ],
)
def test_invalid_messages_are_rejected(raw):
    with pytest.raises(ProcessFailed):
        received(raw)


def test_message_that_trickles_in_times_out(ends):
    ended = threading.Event()

    def drip() -> None:
        for byte in frame(b'{"a": 1}', bytes(50)):
            if not ended.wait(0.05):
                ends[0]._socket.sendall(bytes([byte]))

    dripping = threading.Thread(target=drip)
    dripping.start()
    with pytest.raises(ProcessFailed) as problem:
        ends[1].receive(100, 0.5)
    ended.set()
    dripping.join()
    assert problem.value.is_late


def test_message_that_nobody_reads_times_out(ends):
    with pytest.raises(ProcessFailed) as problem:
        ends[0].send({}, bytes(2**24), 0.2)
    assert problem.value.is_late


@pytest.mark.parametrize(
    ("change", "data"),
    [
        ({}, 2),
        ({}, 12),
        ({"width": None}, 3),
        ({"width": 2**31}, 3),
        ({"load_ms": "soon"}, 3),
        ({"load_ms": 1e400}, 3),
        ({"load_ms": float("nan")}, 3),
        ({"fault": ["missing"]}, 0),
        ({"fault": ["missing", "m"], "height": None}, 0),
        ({"stamp": [1, 2]}, 3),
        ({"stamp": [1, 2, 2**63]}, 3),
    ],
)
def test_impossible_reply_is_rejected(change, data):
    with pytest.raises(ProcessFailed):
        image_from({**REPLY, **change}, bytearray(data), ITEM, ScriptedDecoder())


HOSTILE = {
    "random bytes": (b"\xff" * 200, "worker_crashed"),
    "a pickle": (b"\x80\x04cos\nsystem\n" * 10, "worker_crashed"),
    "not json": (frame(b"no"), "worker_crashed"),
    "too large": (frame(b"{}", size=2**30), "worker_crashed"),
    "another shape": (reply(bytes(12)), "worker_crashed"),
    "too few pixels": (reply(b"\0"), "worker_crashed"),
    "half a message": (reply()[:-2], "timeout"),
    "half a size": (b"\0\0", "timeout"),
}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the test finds it in /proc")
@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_worker_fails_one_row(kind, monkeypatch):
    monkeypatch.setattr(worker_module, "TIME_LIMIT_SECONDS", 3)
    raw, code = HOSTILE[kind]
    items = [Item(0, "a", "a"), Item(1, "b", "b", path=raw.hex()), Item(2, "c", "c")]
    images = list(decode_ahead(items, HostileDecoder(), workers=1, total=None))
    codes = [image and image.fault and image.fault.code for image in images]
    assert codes == [None, code, None]


def test_only_engine_files_import_pickle_or_multiprocessing():
    """Decoding processes send JSON and pixels; engine processes get checked pixels."""
    package = Path(pgcli.__file__).parent
    for file in set(package.rglob("*.py")) - {package / "run" / "workers" / "engine_process.py"}:
        lines = file.read_text(encoding="utf-8").splitlines()
        imports = [line for line in lines if line.lstrip().startswith(("import ", "from "))]
        for name in ("pickle", "multiprocessing", "marshal", "shelve", "dill", "cloudpickle"):
            assert not any(name in line.split() for line in imports), file
        # they unpickle what they receive
        assert not any(f"connection.{name}()" in " ".join(lines) for name in ("recv", "send")), file
