"""How much faster are several GPUs than one? Simulated on a virtual clock: no GPU is measured.

    python benchmarks/several_gpus.py                            # 4,096 rows for each GPU
    python benchmarks/several_gpus.py --rows 100000 --in-all     # shared by the GPUs

Scheduling, row order, the queue and the feeding of workers are pgcli's own code. The model, the
decoding and the owner's work only take time, as measured on one H200 (PaliGemma 3b at 224 pixels,
bfloat16, JPEGs of half a megapixel, 14 decoding processes per GPU). A single GPU answers 467
images/s here. At b0eee833, without staged images, it answered 446 here and 438 on the H200; threads
that hold Python's lock, which reduced that to 349 on another machine, are not simulated. Each
engine is a thread with its own clock; one runs at a time, until it waits for the owner. Prints a
JSON object: images/s of one GPU and of several, as a share of perfect scaling, and the pauses in
which an engine drains because it has no rows.

At 10509f5b engines took chunks of 64 rows and answered each as a separate batch: eight GPUs reached
0.78 of perfect scaling with 16 tokens, and 0.59 with 4 to 64, by this clock.
"""

from __future__ import annotations

import json
import random
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import heappop, heappush, heapreplace
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from benchmarks.measure import options
from pgcli.engine.engine import InferenceEngine
from pgcli.engine.image_cache import ImageCacheStats
from pgcli.engine.model_runner import ASYNC_DEPTH, ModelRunner
from pgcli.engine.oom import BatchLimits
from pgcli.engine.sampler import GREEDY
from pgcli.engine.scheduler import Batch
from pgcli.engine.sequence import Sequence
from pgcli.images.pool import MAX_IMAGES_AHEAD, POLL_SECONDS
from pgcli.pipeline.progress.tally import Tally
from pgcli.pipeline.rows import range_rows
from pgcli.pipeline.workers.engine import send_rows
from pgcli.pipeline.workers.engines import Workers
from pgcli.pipeline.workers.work import EngineInfo, EngineMessage, RowsAnswered, Work, WorkQueue
from pgcli.records import DecodedImage, Item
from pgcli.rows import RowSchema
from pgcli.tasks import caption

GPUS = (2, 4, 8)
STOP, WORD = 1, 5  # token ids
LOADED = 3.0  # seconds to load models; images are decoded before


@dataclass(frozen=True)
class Times:
    """Seconds on an H200 and its host, as measured there, and sizes."""

    prefill_row: float = 0.245 / 128  # with the vision tower
    shortest_prefill: float = 0.020
    steps: tuple[float, float, float] = (1.65e-3, 2.6e-3, 3.6e-3)  # for 1, 128 and 256 rows
    launch: float = 85e-6  # the host's part of a step
    stage: float = 12e-6  # copies an image to pinned memory
    take: float = 60e-6  # takes an image and makes its sequence
    report: float = 75e-6  # makes and writes an answer
    submit: float = 20e-6  # passes an item to a decoding process
    decode: float = 5e-3
    decoders: int = 14
    message: float = 0.2e-3  # from one process to another
    save: float = 40e-6  # the owner receives and saves a row
    pipe_rows: int = 150  # in a full pipe, where the engine waits
    batch_rows: int = 256
    device: str = "cuda:0"

    def step(self, rows: int) -> float:
        least, half, most = self.steps
        if rows <= 128:
            return least + (half - least) * (rows - 1) / 127
        return half + (most - half) * (rows - 128) / 128


H200 = Times()


class Workload(NamedTuple):
    """The workload, by row number: tokens of answers and of prompts."""

    tokens: Callable[[int], int]
    prompt_tokens: Callable[[int], int] = lambda row: 8
    limit: int = 64


def drawn(draw: Callable[[random.Random], int]) -> Callable[[int], int]:
    """A number for each row, from a generator with a fixed seed."""
    generator = random.Random(0)
    numbers = [draw(generator) for _ in range(2**14)]
    return lambda row: numbers[row % len(numbers)]


WORKLOADS = {
    "16 tokens": Workload(lambda row: sys.maxsize, limit=16),
    "4 to 64 tokens": Workload(drawn(lambda r: r.randint(4, 64))),
    "28 prompt lengths": Workload(
        lambda row: sys.maxsize, drawn(lambda r: r.randint(3, 30)), limit=16
    ),
}


class Tokens:
    """A pass's tokens, which are known when they are read: words, then a stop token."""

    def __init__(self, rows: list[Sequence], workload: Workload):
        self._rows, self._tokens = rows, workload.tokens

    def __iter__(self) -> Iterator[Any]:
        """Tokens and log-probabilities, without locations."""
        return iter((self, self, None))

    def copy_to_host(self, rows: int) -> Tokens:
        return self

    def tolist(self) -> list[int]:
        tokens = self._tokens
        return [
            STOP if len(row.tokens) + 1 >= tokens(row.row_index) else WORD for row in self._rows
        ]


class Runner(ModelRunner):
    """A runner with simulated passes on a device that runs ahead of its engine's clock."""

    def __init__(self, engine: Engine, rows: int):
        self.rows, self._grammar, self._grammar_rows = [], None, None
        self._model: Any = None
        self._engine, self._times, self._workload = engine, engine.times, engine.workload
        self._vocabulary: Any = SimpleNamespace(stop_tokens=(STOP,))
        self._sampling, self._max_rows = GREEDY, rows
        self._depth = ASYNC_DEPTH.get(engine.times.device.split(":")[0], 0)
        self._in_flight = deque()
        self._watch: Any = engine
        self._images: Any = engine
        self._model: Any = None
        self._cache: Any = SimpleNamespace(begin_step=int)

    def run(self, batch: Batch) -> None:
        self._run(batch)

    def prefill(self, patch_BPD: Any, group: list[Sequence]) -> None:
        start, times = self._engine.mark(), self._times
        self._engine.launch(max(times.shortest_prefill, times.prefill_row * len(group)))
        self.rows = [*self.rows, *group]
        tokens: Any = Tokens(group, self._workload)
        self._enqueue(group, tokens, start, is_prefill=True)
        self._read_steps(self._depth)

    def _run_step(self) -> Any:
        self._engine.now += self._times.launch
        self._engine.launch(self._times.step(len(self.rows)))
        return Tokens(self.rows, self._workload)

    def _free(self, rows: list[int]) -> None:
        if rows:
            self.rows = [sequence for sequence in self.rows if not sequence.has_ended]

    def clear(self) -> None:
        self.rows = []


class Engine(InferenceEngine):
    """An engine with a clock, `now`, which times the messages that it sends and receives.

    It also serves as the runner's stopwatch and images, the scheduler's input, and the images of a
    worker's rows.
    """

    def __init__(self, clock: Clock, workload: Workload, times: Times):
        self.now, self.clock, self.times, self.workload = LOADED, clock, times, workload
        self.busy = self._device_now = 0.0
        config = SimpleNamespace(image_tokens=256, max_answer_tokens=1024)
        self.model: Any = SimpleNamespace(config=config)
        self.tokenizer: Any = SimpleNamespace(decode=lambda *_: [])
        self.spec: Any = SimpleNamespace(resolution=224)
        self.label, self._device = "simulated", torch.device(times.device)
        self._dtype = torch.bfloat16
        self.batch_limits, self.image_stats = BatchLimits(), ImageCacheStats()
        self._batch_size, self._budget, self._mask_decoder = times.batch_rows, None, None
        self.starts_small = times.device != "cpu"
        self.inbox: deque[tuple[float, Work | None]] = deque()  # with arrival times
        self.received: deque[tuple[float, int]] = deque()  # when so many rows leave the pipe
        self.wakes_at = 0.0
        self.pauses = 0
        self._given: deque[Work] = deque()
        self._in_pipe = 0
        self._taken: deque[float] = deque()  # when the newest images are taken
        self._submitted, self._decoders = 0.0, [0.0] * times.decoders

    def mark(self) -> float:
        return max(self.now, self._device_now)

    def between(self, start: float, end: float) -> float:
        self.now = max(self.now, end)
        return (end - start) * 1000

    def launch(self, seconds: float) -> None:
        self._device_now = self.mark() + seconds
        self.busy += seconds

    def stage(self, sequence: Sequence) -> None:
        self.now += self.times.stage

    def get(self, batch: list[Sequence]) -> None: ...

    def release(self, batch: list[Sequence]) -> None: ...

    def process(self, row: int, image: DecodedImage) -> tuple[list[Sequence], list[Any]]:
        self.now += self.times.take
        ids = (0,) * self.workload.prompt_tokens(row)
        return [Sequence(row, "", ids, self.workload.limit, image=image)], []

    @property
    def _vocabulary(self) -> Any:
        return None

    def _inputs(self, *_: object) -> Any:
        return self

    @contextmanager
    def _runner(self, settings: Any, grammar: object) -> Iterator[Runner]:
        yield Runner(self, settings.rows)

    def take(self, tally: Tally, on_image: Callable[[int, DecodedImage], object]) -> Iterator[Any]:
        while True:
            while not self._receives_until(self.now + POLL_SECONDS):
                self.now += POLL_SECONDS
                self.pauses += 1
                yield None
            arrival, work = self.inbox.popleft()
            if work is None:
                return
            self._given.append(work)
            for row in work.rows:
                decoded = self._decode(arrival)
                tally.waited_seconds += max(0.0, decoded - self.now)
                self.now = max(self.now, decoded)
                self._taken.append(self.now)
                image = DecodedImage(Item(row, "", "", prompts=("",)), 224, 224, None, 0.0)
                on_image(row, image)
                yield row, image

    def _receives_until(self, deadline: float) -> bool:
        """Whether work arrives by then."""
        if not self.inbox:
            self.clock.at(deadline, self)
            self.wakes_at = deadline
            while not self.inbox and self.clock.now < deadline:
                self.clock.pause(self)
            self.wakes_at = 0.0
        return bool(self.inbox) and self.inbox[0][0] <= deadline

    def _decode(self, arrival: float) -> float:
        """When the next image is decoded, if its work has arrived by then."""
        self._submitted = max(arrival, self._submitted + self.times.submit)
        if len(self._taken) == MAX_IMAGES_AHEAD:
            self._submitted = max(self._submitted, self._taken.popleft())
        decoded = max(self._submitted, self._decoders[0]) + self.times.decode
        heapreplace(self._decoders, decoded)
        return decoded

    def answer(self, send: Callable[[EngineMessage | None], object]) -> None:
        """Answer the received rows, like a worker."""
        question = caption(max_new_tokens=self.workload.limit)
        answering = SimpleNamespace(temperature=0.0, top_p=1.0, top_k=0, seed=0)
        request: Any = SimpleNamespace(question=question, answering=answering)
        task: Any = SimpleNamespace(request=request, schema=RowSchema())
        images: Any = self
        send(EngineInfo("", self.times.device, "", self.times.batch_rows, {}))
        send_rows(task, self, images, self._given, lambda: False, send)
        send(None)

    def send(self, message: EngineMessage | None) -> None:
        """Write to the pipe, once there is room."""
        rows = rows_of(message)
        self.now += self.times.report * rows
        while self._in_pipe + rows > self.times.pipe_rows:
            while not self.received:
                self.clock.pause(self)
            time, taken = self.received.popleft()
            self.now = max(self.now, time)
            self._in_pipe -= taken
        self._in_pipe += rows
        self.clock.at(self.now + self.times.message, self, (message,))


def rows_of(message: object) -> int:
    """The rows in a message."""
    return len(message.rows) if isinstance(message, RowsAnswered) else 0


class Clock:
    """Runs engines until all wait, then moves to the next event; `now` is the owner's clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Engine, tuple[Any] | None]] = []
        self._count = 0
        self._due: list[Engine] = []
        self._turns: dict[Engine, threading.Semaphore] = {}
        self._owner = threading.Semaphore(0)
        self._problem: Exception | None = None

    def start(self, engine: Engine) -> None:
        turn = self._turns[engine] = threading.Semaphore(0)

        def run() -> None:
            turn.acquire()
            try:
                engine.answer(engine.send)
            except Exception as problem:  # noqa: BLE001 - raised in the owner's thread
                self._problem = problem
            del self._turns[engine]
            self._owner.release()

        threading.Thread(target=run, daemon=True).start()
        self._due.append(engine)

    def at(self, time: float, engine: Engine, message: tuple[Any] | None = None) -> None:
        """Schedule the arrival of a message, or the end of an engine's wait."""
        self._count += 1
        heappush(self._events, (time, self._count, engine, message))

    def pause(self, engine: Engine) -> None:
        """Let other engines run; called in the thread of an engine that waits."""
        turn = self._turns[engine]
        self._owner.release()
        turn.acquire()

    def wake(self, engine: Engine) -> None:
        if engine not in self._due:
            self._due.append(engine)

    def next(self) -> tuple[Engine, EngineMessage | None]:
        """The next message to arrive, and the engine that sent it."""
        while True:
            while self._due:
                if turn := self._turns.get(self._due.pop(0)):
                    turn.release()
                    self._owner.acquire()
                if self._problem is not None:
                    raise self._problem
            time, _, engine, message = heappop(self._events)
            self.now = max(self.now, time)
            if message is not None:
                return engine, message[0]
            if engine.wakes_at == time:
                self.wake(engine)


class SimulatedWorker:
    """The owner's view of an engine."""

    def __init__(self, engine: Engine):
        self.engine = engine
        self.message: EngineMessage | None = None

    def send(self, work: Work | None) -> None:
        clock = self.engine.clock
        self.engine.inbox.append((clock.now + self.engine.times.message, work))
        clock.wake(self.engine)

    def receive(self) -> EngineMessage | None:
        clock, rows = self.engine.clock, rows_of(self.message)
        self.engine.received.append((clock.now, rows))
        clock.wake(self.engine)
        clock.now += self.engine.times.save * rows
        return self.message

    def stop(self) -> None: ...

    def close(self) -> None: ...


class SimulatedWorkers(Workers):
    """The owner's loop over simulated engines."""

    def __init__(self, queue: WorkQueue, engines: list[Engine], clock: Clock):
        super().__init__(queue, lambda: False)
        self._clock = clock
        self._engines = {engine: SimulatedWorker(engine) for engine in engines}
        self._new = [*self._engines.values()]

    def start(self) -> None:
        while self._new:
            self.add(self._new.pop())

    def ready(self) -> Iterator[SimulatedWorker]:
        engine, message = self._clock.next()
        worker = self._engines[engine]
        worker.message = message
        yield worker


class Result(NamedTuple):
    """Images per second, the busy share of the GPUs, and how often one had no work."""

    rate: float
    busy: float
    pauses: int


def alone(rows: int, workload: Workload, times: Times = H200) -> Result:
    """A GPU with a process that saves its own rows."""
    engine = Engine(Clock(), workload, times)
    engine.inbox += [(0.0, Work(range(rows))), (0.0, None)]

    def save(message: EngineMessage | None) -> None:
        engine.now += times.report * rows_of(message)

    engine.answer(save)
    seconds = engine.now - LOADED
    return Result(rows / seconds, engine.busy / seconds, engine.pauses)


def several(gpus: int, rows: int, workload: Workload, times: Times = H200) -> Result:
    """GPUs that share all rows."""
    clock = Clock()
    engines = [Engine(clock, workload, times) for _ in range(gpus)]
    queue = WorkQueue([Work(range(rows))], workers=gpus, size=range_rows(rows))
    workers = SimulatedWorkers(queue, engines, clock)
    for engine in engines:
        clock.start(engine)
    saved, ended = 0, 0.0
    for message in workers.messages():
        if answered := rows_of(message):
            saved, ended = saved + answered, clock.now
    assert saved == rows, f"{saved} of {rows} rows were answered"
    seconds = ended - LOADED
    busy = sum(engine.busy for engine in engines) / gpus / seconds
    return Result(rows / seconds, busy, sum(engine.pauses for engine in engines))


def main() -> None:
    chosen = options(__doc__, rows=4096, in_all=False)
    measured: dict[str, Any] = {
        "simulated": "an H200",
        "rows": chosen.rows,
        "in_all": chosen.in_all,
    }
    for name, workload in WORKLOADS.items():
        results = {1: alone(chosen.rows, workload)}
        for gpus in GPUS:
            results[gpus] = several(gpus, chosen.rows * (1 if chosen.in_all else gpus), workload)
        measured[name] = {
            str(gpus): {
                "images_per_second": round(result.rate, 1),
                "of_times_one": round(result.rate / gpus / results[1].rate, 3),
                "gpu_busy": round(result.busy, 3),
                "pauses": result.pauses,
            }
            for gpus, result in results.items()
        }
    sys.stdout.write(json.dumps(measured, indent=1) + "\n")


if __name__ == "__main__":
    main()
