"""Answers a stream of images on several engine processes."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from time import monotonic
from typing import Any

from pgcli.cluster.chunk_driver import MAX_DEATHS, MAX_DEATHS_IN_A_ROW
from pgcli.cluster.engine_group import EngineGroup, PoolBatchLimits
from pgcli.cluster.engine_handle import EngineDied, EngineHandle
from pgcli.cluster.engine_process import Load
from pgcli.cluster.engine_slot import EngineSlot
from pgcli.cluster.image_chunks import NumberedImages, image_chunks
from pgcli.cluster.messages import AnsweredRows, ChunkDone, EngineCounts, EngineInfo, ImageChunk
from pgcli.cluster.start_method import SPAWN
from pgcli.errors import NoUsableDevice
from pgcli.records import Answer, DecodedImage, Fault

#: In a chunk; on a CPU few, so that all engines end at about the same time.
CHUNK_BATCHES, CPU_CHUNK_BATCHES = 4, 2
CHUNK_BYTES = 64 * 2**20
RECEIVE_SECONDS = 0.01  # between two looks for answers while images are taken
#: Images that killed their engine, before any row was answered.
MAX_KILLERS_AT_START = 3

Refuse = Callable[[DecodedImage, str], Answer]


class EnginePool(EngineGroup):
    """Engine processes, one in each slot, which answer chunks of rows.

    A chunk's rows follow from the input and the settings alone, and an engine answers one chunk at
    a time: in float32 rows do not depend on the number of engines. An engine that dies is started
    again, and its chunks are answered again. A chunk whose engine died twice is answered image by
    image; the rows of an image whose engine dies again have the error `worker_crashed`. Processes
    are started by `context`.
    """

    def __init__(self, load: Load, slots: Sequence[EngineSlot], context: BaseContext = SPAWN):
        super().__init__()
        self.batch_limits = PoolBatchLimits(self._learn)
        self._start = partial(EngineHandle, load, context=context)
        self._counts: dict[EngineHandle, EngineCounts] = {}
        self._engines = [self._start(slot) for slot in slots]
        try:
            self.info = self._first_info()
        except BaseException:
            self.close()
            raise

    @property
    def count(self) -> int:
        """The number of engines."""
        return len(self._engines)

    @property
    def facts(self) -> Iterator[tuple[str, str]]:
        yield "engines", f"{self.count} process{'es' * (self.count != 1)}"
        yield from self.info.facts

    @property
    def chunk_images(self) -> int:
        """The number of images in a chunk: a few batches, limited by their bytes."""
        fitting = CHUNK_BYTES // (3 * self.spec.resolution**2)
        batches = CPU_CHUNK_BATCHES if self.device == "cpu" else CHUNK_BATCHES
        return max(self.batch_size, min(batches * self.batch_size, fitting))

    def ask(
        self,
        stream: Iterable[tuple[int, DecodedImage]],
        refuse: Refuse,
        should_stop: Callable[[], bool],
        file_rows: int | None = None,
    ) -> Iterator[tuple[int, Answer]]:
        """The answers to each image's prompts, with their row indices, in the order they end.

        `refuse` makes the row of a prompt whose image killed its engine. No chunk has rows of two
        files of the output, which have `file_rows` rows.
        """
        run = _PoolRun(self, stream, refuse, should_stop, file_rows or sys.maxsize)
        yield from run.answers()

    def close(self) -> None:
        """End the processes."""
        for engine in self._engines:
            engine.close()

    def restart(self, engine: EngineHandle) -> None:
        """Start a process in place of one that has died."""
        engine.close()
        new = self._engines[self._engines.index(engine)] = self._start(engine.slot)
        if limits := self.batch_limits.state_dict():
            new.learn(limits)

    def remove(self, engine: EngineHandle) -> None:
        """Go on without an engine that has died."""
        engine.close()
        self._engines.remove(engine)

    def engines(self) -> list[EngineHandle]:
        """The engines, in the order of their slots."""
        return list(self._engines)

    def count_chunk(self, engine: EngineHandle, counts: EngineCounts) -> None:
        """Note what an engine has counted so far."""
        self._counts[engine] = counts
        self.batch_limits.update(counts)
        self.image_stats.hits = sum(one.hits for one in self._counts.values())
        self.image_stats.prompts = sum(one.prompts for one in self._counts.values())

    def _learn(self, limits: Mapping[str, Any]) -> None:
        for engine in self._engines:
            engine.learn(limits)

    def _first_info(self) -> EngineInfo:
        """What the engine says that is loaded first. Raises what loading raised."""
        ready = wait([engine.connection for engine in self._engines])[0]
        engine = next(one for one in self._engines if one.connection is ready)
        try:
            info: EngineInfo = engine.receive()
        except EngineDied as problem:
            raise _cannot_load(problem) from problem
        return info


class _PoolRun:
    """One call of `EnginePool.ask`."""

    def __init__(
        self,
        pool: EnginePool,
        stream: Iterable[tuple[int, DecodedImage]],
        refuse: Refuse,
        should_stop: Callable[[], bool],
        file_rows: int,
    ):
        self._pool, self._refuse, self._should_stop = pool, refuse, should_stop
        self._chunks: Iterator[NumberedImages | None] | None = image_chunks(
            stream, pool.chunk_images, file_rows
        )
        self._ready: deque[ImageChunk] = deque()  # chunks that no engine has
        self._missing: dict[int, set[int]] = {}  # unanswered rows by chunk
        self._deaths: dict[int, int] = {}
        self._killers, self._next_number, self._is_stopping = 0, 0, False
        self._unloaded = 0  # engines that died while they loaded, one after the other
        self._receives_at = 0.0

    def answers(self) -> Iterator[tuple[int, Answer]]:
        """Give chunks to engines and receive rows, until all rows are answered."""
        while self._take_images() or self._missing:
            self._request_stop()
            if self._chunks is None and not self._missing:
                return
            self._assign()
            if not self._wants_images():
                yield from self._receive(None)
            elif monotonic() >= self._receives_at:
                self._receives_at = monotonic() + RECEIVE_SECONDS
                yield from self._receive(0)

    def _wants_images(self) -> bool:
        has_room = any(engine.has_room for engine in self._pool.engines())
        return self._chunks is not None and not self._ready and has_room

    def _take_images(self) -> bool:
        """Take one image from the stream if an engine has room. False once the stream has ended."""
        if self._wants_images():
            assert self._chunks is not None
            try:
                if (images := next(self._chunks)) is not None:
                    self._add_chunk(images)
            except StopIteration:
                self._chunks = None
        return self._chunks is not None

    def _add_chunk(self, images: NumberedImages, deaths: int = 0) -> None:
        chunk = ImageChunk(self._next_number, images)
        self._next_number += 1
        self._ready.append(chunk)
        self._missing[chunk.number] = set(chunk.rows)
        self._deaths[chunk.number] = deaths

    def _request_stop(self) -> None:
        """Once, have the engines finish the rows in progress, and give out no more chunks."""
        if self._is_stopping or not self._should_stop():
            return
        self._is_stopping, self._chunks = True, None
        for chunk in self._ready:
            del self._missing[chunk.number]
        self._ready.clear()
        for engine in self._pool.engines():
            engine.stop()

    def _assign(self) -> None:
        """Give chunks to the engines that have the fewest."""
        while self._ready:
            free = [engine for engine in self._pool.engines() if engine.has_room]
            if not free:
                return
            min(free, key=lambda one: len(one.chunks)).send(self._ready.popleft())

    def _receive(self, timeout: float | None) -> Iterator[tuple[int, Answer]]:
        """The rows that have arrived; with no `timeout`, wait for a message."""
        engines = {engine.connection: engine for engine in self._pool.engines()}
        for connection in wait(list(engines), timeout):
            engine = engines[connection]  # type: ignore[index]
            try:
                message = engine.receive()
            except EngineDied as problem:
                yield from self._on_death(engine, problem)
                continue
            if isinstance(message, EngineInfo):
                self._unloaded = 0
            elif isinstance(message, AnsweredRows):
                missing = self._missing[engine.chunks[0].number]
                for row_index, answer in message.rows:
                    if row_index in missing:  # else another engine answered it and died
                        missing.remove(row_index)
                        self._killers = 0
                        yield row_index, answer
            elif isinstance(message, ChunkDone):
                chunk = engine.chunks.popleft()
                assert self._is_stopping or not self._missing[chunk.number]
                del self._missing[chunk.number], self._deaths[chunk.number]
                self._pool.count_chunk(engine, message.counts)

    def _on_death(self, engine: EngineHandle, problem: EngineDied) -> Iterator[tuple[int, Answer]]:
        """Start the engine again. Its chunks are answered again; rows of killers are errors."""
        chunks = list(engine.chunks)
        if self._is_stopping or self._should_stop():
            self._pool.remove(engine)
            for chunk in chunks:
                del self._missing[chunk.number]
            return
        self._restart(engine, problem)
        if not chunks:
            return
        first = chunks[0]
        self._deaths[first.number] += 1
        if self._deaths[first.number] < MAX_DEATHS:
            self._ready.extendleft(reversed(chunks))
            return
        self._ready.extendleft(reversed(chunks[1:]))
        missing = self._missing.pop(first.number)
        if len(first.images) > 1:
            for number, image in first.images:
                left = set(range(number, number + len(image.item.prompts))) & missing
                if left:
                    self._add_chunk(((number, image),), deaths=MAX_DEATHS - 1)
                    self._missing[self._next_number - 1] = left
            return
        yield from self._refuse_rows(*first.images[0], missing)

    def _restart(self, engine: EngineHandle, problem: EngineDied) -> None:
        """Start the engine again. Raises NoUsableDevice where engines only end while they load."""
        if not engine.is_loaded:
            self._unloaded += 1
            if self._unloaded > max(MAX_DEATHS_IN_A_ROW, 2 * self._pool.count):
                raise _cannot_load(problem) from problem
        self._pool.restart(engine)

    def _refuse_rows(
        self, first: int, image: DecodedImage, missing: set[int]
    ) -> Iterator[tuple[int, Answer]]:
        """Error rows of an image that killed its engine."""
        self._killers += 1
        if self._killers >= MAX_KILLERS_AT_START:
            raise NoUsableDevice(
                f"engines died at {self._killers} images in a row",
                hint="run it with --engines 1 --debug; the device may be lost or out of memory",
            )
        fault = Fault("worker_crashed", "The process of the model died of the image, twice.")
        killer = DecodedImage(
            image.item, image.width, image.height, None, image.load_ms, fault, image.stamp
        )
        for row_index, prompt in enumerate(image.item.prompts, start=first):
            if row_index in missing:
                yield row_index, self._refuse(killer, prompt)


def _cannot_load(problem: EngineDied) -> NoUsableDevice:
    return NoUsableDevice(
        f"an engine process ended before its model was loaded: {problem}",
        hint="fewer --engines need less memory",
    )
