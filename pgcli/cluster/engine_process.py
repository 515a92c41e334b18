"""The main loop of an engine process: chunks of images arrive, answered rows leave."""

from __future__ import annotations

import os
import queue
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from time import monotonic

from pgcli.cluster.channel import receive, send
from pgcli.cluster.engine_slot import EngineSlot
from pgcli.cluster.messages import (
    AnsweredRows,
    ChunkDone,
    EngineFailed,
    ImageChunk,
    LearnedLimits,
    LoadedEngine,
    StopRequest,
)
from pgcli.cluster.start_method import ignore_signals
from pgcli.records import Answer
from pgcli.workers.process_limits import die_with_parent

SEND_SECONDS = 0.02  # between two messages with rows


Load = Callable[[EngineSlot], LoadedEngine]


def serve(connection: Connection, load: Load, slot: EngineSlot) -> None:
    """Load an engine and answer chunks until the connection ends. Errors are sent, not raised."""
    die_with_parent()
    ignore_signals()
    with suppress(BrokenPipeError, ConnectionResetError):
        try:
            _answer_chunks(connection, load, slot)
        except Exception as error:  # noqa: BLE001 - the program raises it
            send(connection, EngineFailed(error, traceback.format_exc()))


def _answer_chunks(connection: Connection, load: Load, slot: EngineSlot) -> None:
    engine = load(slot)
    send(connection, engine.info)
    stop = threading.Event()
    chunks: queue.SimpleQueue[ImageChunk | LearnedLimits] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(connection, chunks, stop), daemon=True).start()
    ask = engine.make_ask(stop.is_set)
    while True:
        chunk = chunks.get()
        if isinstance(chunk, LearnedLimits):
            engine.load_limits(chunk.state)
            continue
        for rows in together(ask(iter(chunk.images)), SEND_SECONDS):
            send(connection, AnsweredRows(rows))
        send(connection, ChunkDone(chunk.number, engine.counts()))


def together(
    answers: Iterable[tuple[int, Answer]], seconds: float
) -> Iterator[tuple[tuple[int, Answer], ...]]:
    """The answers, those that come within so many seconds together."""
    rows: list[tuple[int, Answer]] = []
    sent_at = monotonic()
    for row in answers:
        rows.append(row)
        if monotonic() - sent_at >= seconds:
            yield tuple(rows)
            rows, sent_at = [], monotonic()
    if rows:
        yield tuple(rows)


def _receive(
    connection: Connection,
    chunks: queue.SimpleQueue[ImageChunk | LearnedLimits],
    stop: threading.Event,
) -> None:
    """Put chunks into the queue as they arrive; end the process when the program has ended."""
    with suppress(EOFError, OSError):
        while True:
            message = receive(connection)
            if isinstance(message, StopRequest):
                stop.set()
            else:
                chunks.put(message)
    os._exit(1)
