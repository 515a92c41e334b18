"""The main loop of an engine process: chunks of images arrive, answered rows leave."""

from __future__ import annotations

import queue
import signal
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from pgcli.cluster.messages import (
    AnsweredRow,
    ChunkDone,
    EngineFailed,
    ImageChunk,
    LoadedEngine,
    StopRequest,
)
from pgcli.workers.process_limits import die_with_parent


@dataclass(frozen=True, slots=True)
class EngineSlot:
    """Where an engine runs: on `threads` cores, or on the device of this name."""

    threads: int
    device: str = "cpu"


Load = Callable[[EngineSlot], LoadedEngine]


def serve(connection: Connection, load: Load, slot: EngineSlot, limits: Mapping[str, Any]) -> None:
    """Load an engine and answer chunks until the connection ends. Errors are sent, not raised.

    `limits` are batch sizes that are known to fit into memory.
    """
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program, which decides
    with suppress(BrokenPipeError, ConnectionResetError):
        try:
            _answer_chunks(connection, load, slot, limits)
        except Exception as error:  # noqa: BLE001 - the program raises it
            connection.send(EngineFailed(error, traceback.format_exc()))


def _answer_chunks(
    connection: Connection, load: Load, slot: EngineSlot, limits: Mapping[str, Any]
) -> None:
    engine = load(slot)
    engine.load_limits(limits)
    connection.send(engine.info)
    stop = threading.Event()
    chunks: queue.SimpleQueue[ImageChunk | None] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(connection, chunks, stop), daemon=True).start()
    ask = engine.make_ask(stop.is_set)
    while (chunk := chunks.get()) is not None:
        for row_index, answer in ask(iter(chunk.images)):
            connection.send(AnsweredRow(row_index, answer))
        connection.send(ChunkDone(chunk.number, engine.counts()))


def _receive(
    connection: Connection, chunks: queue.SimpleQueue[ImageChunk | None], stop: threading.Event
) -> None:
    """Put chunks into the queue as they arrive, and None at the end of the connection."""
    with suppress(EOFError, OSError):
        while True:
            message = connection.recv()
            if isinstance(message, StopRequest):
                stop.set()
            else:
                chunks.put(message)
    chunks.put(None)
