"""Tests the messages between worker processes and their parent, and their validation."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import pgcli
from pgcli.images import ImageDecoder, ImageLimits, ImageSpec
from pgcli.records import DecodedImage, Fault, Item
from pgcli.workers import prefetch, worker_handle
from pgcli.workers.decoder import describe_decoder, load_decoder
from pgcli.workers.message_pipe import MalformedMessage, Message, MessagePipe
from pgcli.workers.messages import (
    image_from_message,
    image_to_message,
    item_from_message,
    item_to_message,
)
from tests.support.decoders import REPLY, HostileDecoder, ScriptedDecoder, frame

ITEM = Item(7, "id", "shown", "path", b"bytes", ("a prompt",), kept={"n": 1}, fields={"m": 2})


@pytest.fixture
def pipe() -> Iterator[MessagePipe]:
    """A pipe that returns the messages sent through it."""
    reader, writer = os.pipe()
    yield MessagePipe(reader, writer, max_data_bytes=2**24)
    os.close(reader)
    os.close(writer)


def sent_through(pipe: MessagePipe, message: Message) -> Message:
    sending = threading.Thread(target=pipe.send, args=(message,))
    sending.start()
    received = pipe.receive(time.monotonic() + 20)
    sending.join()
    return received


@pytest.mark.parametrize("side", [1, 224, 896])
def test_pixels_cross_a_pipe_unchanged_and_writable(pipe: MessagePipe, side: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)
    image = DecodedImage(ITEM, 5, 6, pixels, 0.5)
    message = sent_through(pipe, image_to_message(image))
    received = image_from_message(message, ITEM, ImageDecoder(ImageSpec(side)))
    assert (received.width, received.height, received.load_ms) == (5, 6, 0.5)
    assert received.item.data is None
    assert received.item.kept == ITEM.kept
    assert np.array_equal(received.pixels, pixels)
    received.pixels[0, 0, 0] ^= 1  # torch warns of arrays that are not writable


@pytest.mark.parametrize("size", [None, (5, 6)])
def test_faults_cross_a_pipe(pipe: MessagePipe, size: tuple[int, int] | None) -> None:
    fault = Fault("truncated", "\u00e9 \x1b and \ud800")
    image = DecodedImage(ITEM, *(size or (None, None)), None, 0.5, fault)
    received = image_from_message(
        sent_through(pipe, image_to_message(image)), ITEM, ImageDecoder(ImageSpec(8))
    )
    assert (received.fault, received.pixels) == (fault, None)
    assert (received.width, received.height) == (size or (None, None))


@pytest.mark.parametrize("data", [None, b"", b"bytes"])
@pytest.mark.parametrize("path", [None, "a.png", os.fsdecode(b"\xff.png")])
def test_worker_gets_what_decoding_needs(
    pipe: MessagePipe, path: str | None, data: bytes | None
) -> None:
    item = Item(3, "i", "shown", path, data, ("p",), kept={"n": object()}, fields={"m": object()})
    received = item_from_message(sent_through(pipe, item_to_message(item)))
    assert (received.index, received.id, received.path, received.data) == (3, "i", path, data)
    assert (received.prompts, received.kept, received.fields) == ((), {}, {})


def test_decoder_is_rebuilt_from_its_name_and_settings(pipe: MessagePipe) -> None:
    decoder = ImageDecoder(ImageSpec(8, 2, True), ImageLimits(100, 200))
    description = sent_through(pipe, Message(describe_decoder(decoder))).header
    assert load_decoder(description) == decoder


def test_decoder_of_the_main_program_is_refused() -> None:
    local = type("Local", (ScriptedDecoder,), {"__module__": "__main__"})
    with pytest.raises(TypeError, match="Local is not in a module"):
        describe_decoder(local())


def test_pipe_that_ends_within_a_message_raises_eof() -> None:
    whole = frame(REPLY, b"abc")
    for length in range(len(whole)):
        reader, writer = os.pipe()
        pipe = MessagePipe(reader, writer, max_data_bytes=100)
        os.write(writer, whole[:length])
        os.close(writer)
        with pytest.raises(EOFError):
            pipe.receive()
        os.close(reader)


def test_deadlines_hold_for_half_a_message_and_for_a_full_pipe(pipe: MessagePipe) -> None:
    os.set_blocking(pipe._write_fd, False)
    with pytest.raises(TimeoutError):
        pipe.send(Message({}, bytes(2**23)), time.monotonic() + 0.1)
    with pytest.raises(TimeoutError):
        pipe.receive(time.monotonic() + 0.1)


@pytest.mark.parametrize(
    "raw",
    [
        frame(b"not json"),
        frame(b"[1]"),
        frame(b"[" * 10_000),
        frame(b"\xff\xfe"),
        frame(b"{}", data_bytes=101),
        frame(b"{}", data_bytes=2**63),
        frame(b" " * 2**20 + b"{}"),
        b"\xff" * 100,
    ],
)
def test_bytes_that_are_not_a_message_are_refused(raw: bytes) -> None:
    reader, writer = os.pipe()
    pipe = MessagePipe(reader, writer, max_data_bytes=100)
    os.set_blocking(writer, False)
    os.write(writer, raw)  # or as much of it as a pipe holds
    with pytest.raises(MalformedMessage):
        pipe.receive(time.monotonic() + 20)
    os.close(reader)
    os.close(writer)


GOOD = {"width": 1, "height": 1, "load_ms": 0.0, "fault": None, "shape": [1, 1, 3]}


def test_valid_reply_is_an_image() -> None:
    image = image_from_message(Message(GOOD, bytes(3)), ITEM, ScriptedDecoder())
    assert (image.width, image.fault) == (1, None)


@pytest.mark.parametrize(
    ("change", "data"),
    [
        ({"shape": None}, 3),
        ({"shape": [3]}, 3),
        ({"shape": [1, 1, 3.0]}, 3),
        ({"shape": [True, 1, 3]}, 3),
        ({"shape": [-1, -1, 3]}, 3),
        ({"shape": [[1], 1, 3]}, 3),
        ({"shape": "113"}, 3),
        ({"shape": [1, 1, 3, 2**40]}, 3),
        ({"shape": [2, 2, 3]}, 12),
        ({}, 2),
        ({}, 4),
        ({"width": None}, 3),
        ({"width": None, "height": None}, 3),
        ({"width": "1"}, 3),
        ({"width": True}, 3),
        ({"width": 0}, 3),
        ({"width": 10**30}, 3),
        ({"load_ms": None}, 3),
        ({"load_ms": -1}, 3),
        ({"load_ms": float("nan")}, 3),
        ({"load_ms": float("inf")}, 3),
        ({"load_ms": 10**400}, 3),
        ({"fault": "missing"}, 0),
        ({"fault": ["missing"]}, 0),
        ({"fault": ["missing", 1]}, 0),
        ({"fault": ["missing", "m"]}, 3),
    ],
)
def test_reply_that_the_decoder_cannot_have_made_is_refused(
    change: dict[str, object], data: int
) -> None:
    with pytest.raises(MalformedMessage):
        image_from_message(Message({**GOOD, **change}, bytes(data)), ITEM, ScriptedDecoder())


OTHER_SHAPE = REPLY.replace(b"[1, 1, 3]", b"[2, 2, 3]")
HOSTILE = {
    "random bytes": (b"\xff" * 200, "worker_crashed"),
    "a pickle": (b"\x80\x04cos\nsystem\n" * 10, "worker_crashed"),
    "not json": (frame(b"no", b""), "worker_crashed"),
    "too large": (frame(b"{}", data_bytes=2**40), "worker_crashed"),
    "another shape": (
        frame(OTHER_SHAPE, bytes(12)),
        "worker_crashed",
    ),
    "too few pixels": (frame(REPLY, b"\0"), "worker_crashed"),
    "half a message": (frame(REPLY, b"\0\0\0")[:-2], "timeout"),
}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the test finds the pipe in /proc")
@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_worker_costs_one_row(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_handle, "TIME_LIMIT_SECONDS", 3)
    raw, code = HOSTILE[kind]
    items = [Item(0, "a", "a"), Item(1, "b", "b", path=raw.hex()), Item(2, "c", "c")]
    images = list(prefetch(items, HostileDecoder(), workers=1, total=None))
    assert [image.fault and image.fault.code for image in images] == [None, code, None]


def test_no_file_but_those_of_engines_imports_pickle_or_multiprocessing() -> None:
    """Processes that decode images of others send JSON; engines get pixels that were checked."""
    package = Path(pgcli.__file__).parent
    for file in set(package.rglob("*.py")) - set((package / "cluster").rglob("*.py")):
        lines = file.read_text(encoding="utf-8").splitlines()
        imports = [line for line in lines if line.lstrip().startswith(("import ", "from "))]
        for name in ("pickle", "multiprocessing", "marshal", "shelve", "dill", "cloudpickle"):
            assert not any(name in line.split() for line in imports), file
