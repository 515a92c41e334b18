"""Workers are fed ahead, followed and replaced; an engine answers its works as one stream."""

import json
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pgcli.errors import NoUsableDevice
from pgcli.inputs import Inventory
from pgcli.records import Answer, DecodedImage
from pgcli.rows import RowSchema
from pgcli.run import model
from pgcli.run.checks import read_options
from pgcli.run.progress import Tally
from pgcli.run.request import make_request
from pgcli.run.run_output import record_inventory
from pgcli.run.workers.engine import EngineTask, answer_works, rows_of_task
from pgcli.run.workers.engine_process import EngineDied
from pgcli.run.workers.engines import MAX_DEATHS_IN_A_ROW, RowsLost, Workers
from pgcli.run.workers.work import (
    EngineInfo,
    EngineMessage,
    EngineSlot,
    RowsAnswered,
    Work,
    WorkBegun,
    WorkQueue,
)
from pgcli.stores import LocalStore
from tests.support import pretend
from tests.support.stub_runs import make_images

INFO = EngineInfo("demo", "cpu", "float32", 4, {})
#: What an engine does instead of sending a message; it may raise.
Fate = Callable[["FakeEngine", Any], object]


class FakeEngine:
    """Answers works, one message at a time."""

    def __init__(self, on_message: Fate):
        self.given: list[Work | None] = []
        self.outbox: deque[Any] = deque([INFO])
        self.is_stopped = self.is_closed = False
        self._on_message = on_message

    def send(self, work: Work | None) -> None:
        assert None not in self.given, "the end comes last, and once"
        assert not self.is_stopped
        self.given.append(work)
        if work is None:
            self.outbox.append(None)
            return
        self.outbox.append(WorkBegun(work.rows))
        self.outbox += map(message_of, work.rows)

    def receive(self) -> Any:
        assert not self.is_closed
        self._on_message(self, self.outbox[0])
        return self.outbox.popleft()

    def stop(self) -> None:
        self.is_stopped = True
        while not isinstance(self.outbox[-2], WorkBegun):  # of the last range, a row in progress
            self.outbox.pop()
        self.outbox.append(None)

    def close(self) -> None:
        self.is_closed = True


class FakeWorkers(Workers):
    """As many engines as there is room for."""

    def __init__(
        self,
        total: int,
        fate: Fate = lambda engine, message: None,
        *,
        count: int = 2,
        should_stop: Callable[[], bool] = lambda: False,
    ):
        self.queue = WorkQueue([Work(range(total))], workers=count, size=8)
        super().__init__(self.queue, should_stop)
        self.engines: list[FakeEngine] = []
        self._fate, self._count = fate, count

    def start(self) -> None:
        while self.queue and len(self.ahead) < self._count:
            self.engines.append(FakeEngine(self._fate))
            self.add(self.engines[-1])

    def ready(self) -> Iterator[FakeEngine]:
        engines = [engine for engine in self.engines if engine in self.ahead and engine.outbox]
        assert engines, "all wait for each other"
        yield from engines


def outcome(workers: FakeWorkers) -> tuple[list[int], list[int]]:
    """The rows that were answered, and those that were lost, each in order."""
    answered, lost = list[int](), list[int]()
    for message in workers.messages():
        if isinstance(message, RowsAnswered):
            answered += message.rows
        elif isinstance(message, RowsLost):
            lost += message.rows
    assert all(engine.is_closed for engine in workers.engines)
    return sorted(answered), sorted(lost)


def message_of(number: int) -> RowsAnswered:
    return RowsAnswered(number, [b"a line"], Tally(rows=1).counts, [], {}, "")


def number_of(message: Any) -> int | None:
    return message.rows.start if isinstance(message, RowsAnswered) else None


def test_workers_are_fed_ahead_and_get_the_end_once():
    workers = FakeWorkers(100, count=2)
    seen: dict[str, list[Work | None]] = {}

    def noted(engine: FakeEngine, message: Any) -> None:
        if number_of(message) is not None and engine is workers.engines[0]:
            seen.setdefault("first row", list(engine.given))

    workers._fate = noted
    messages = workers.messages()
    next(messages)
    assert workers.engines[0].given == [Work(range(8))], "no rows are in progress before it loads"
    rows = [number for message in messages if (number := number_of(message)) is not None]
    assert sorted(rows) == [*range(100)]
    assert len(seen["first row"]) == 2, "the next range arrives before a row is answered"
    assert [engine.given[-1] for engine in workers.engines] == [None, None]
    assert not any(engine.is_stopped for engine in workers.engines)


def test_deaths_before_the_model_is_loaded_count_for_no_range():
    loads = iter(range(100))

    def fate(engine: FakeEngine, message: Any) -> None:
        if isinstance(message, EngineInfo) and next(loads) < MAX_DEATHS_IN_A_ROW:
            raise EngineDied("signal 9 ended it")

    workers = FakeWorkers(20, fate)
    assert outcome(workers) == ([*range(20)], [])
    assert len(workers.engines) == MAX_DEATHS_IN_A_ROW + 2
    assert {work.deaths for engine in workers.engines for work in engine.given if work} == {0}


@pytest.mark.parametrize(("count", "deaths"), [(2, 9), (6, 13)])
def test_run_ends_after_too_many_deaths(count, deaths):
    def fate(engine: FakeEngine, message: Any) -> None:
        raise EngineDied("it ended with exit code 7")

    workers = FakeWorkers(100, fate, count=count)
    with pytest.raises(NoUsableDevice, match=f"{deaths} engines died in a row.* exit code 7"):
        outcome(workers)
    assert all(engine.is_closed for engine in workers.engines)


@pytest.mark.parametrize(("total", "lost"), [(8, [3]), (22, [3, 21])])
def test_killer_image_is_lost_and_others_are_answered(total, lost):
    """Engines that wait for the end of the hunt are told that nothing comes any more."""

    def fate(engine: FakeEngine, message: Any) -> None:
        if number_of(message) in lost:
            raise EngineDied("signal 11 ended it")

    workers = FakeWorkers(total, fate, count=3)
    assert outcome(workers) == ([number for number in range(total) if number not in lost], lost)
    killers = [
        work for engine in workers.engines for work in engine.given if work and work.is_alone
    ]
    assert [work.deaths for work in killers if 3 in work.rows] == [0, 1]


def test_deaths_with_rows_between_them_are_not_consecutive():
    rows: set[int] = set()

    def fate(engine: FakeEngine, message: Any) -> None:
        if (number := number_of(message)) is not None and number % 2 and number not in rows:
            rows.add(number)
            raise EngineDied("signal 9 ended it")

    workers = FakeWorkers(60, fate)
    assert outcome(workers) == ([*range(60)], [])
    assert len(workers.engines) > 2 * MAX_DEATHS_IN_A_ROW


def test_exception_of_an_engine_ends_the_run():
    def fate(engine: FakeEngine, message: Any) -> None:
        if number_of(message) == 5:
            raise ValueError("wrong model")

    workers = FakeWorkers(60, fate)
    with pytest.raises(ValueError, match="wrong model"):
        outcome(workers)
    assert all(engine.is_closed for engine in workers.engines)


@pytest.mark.parametrize("dies", [False, True])
def test_stopping_run_keeps_rows_in_progress(dies):
    stop: list[int] = []

    def fate(engine: FakeEngine, message: Any) -> None:
        if number_of(message) == 3:
            stop.append(3)
        if engine.is_stopped and message is None and dies:
            raise EngineDied("signal 9 ended it")

    workers = FakeWorkers(60, fate, should_stop=lambda: bool(stop))
    answered, lost = outcome(workers)
    given = sum(len(work.rows) for engine in workers.engines for work in engine.given if work)
    assert answered[:4] == [0, 1, 2, 3]
    assert (lost, len(workers.engines), len(answered) < given < 60) == ([], 2, True)
    assert all(engine.is_stopped for engine in workers.engines)


class BatchEngine(pretend.Engine):
    """Answers batches of at least four rows, the last one first.

    `on_step` is called before each with the rows that were answered until then.
    """

    on_step: Callable[[set[int]], object]

    def __init__(self) -> None:
        self.asked = self.most = 0
        self.answered = set[int]()
        self.has_all_works = threading.Event()
        self.image_stats = SimpleNamespace(hits=0, prompts=0)

    def ask(
        self,
        stream: Iterable[tuple[int, DecodedImage]],
        *given: Any,
        should_stop: Callable[[], bool],
        **options: Any,
    ) -> Iterator[tuple[int, Answer]]:
        self.asked += 1
        batch: list[tuple[int, Answer]] = []
        for pair in stream:
            assert self.has_all_works.wait(60)
            batch += super().ask([pair], *given, **options)
            self.image_stats.hits += 1
            self.image_stats.prompts += 2
            self.most = max(self.most, len(batch))
            if len(batch) > 4:
                yield from self._step(batch, should_stop)
        yield from self._step(batch, should_stop)

    def _step(
        self, batch: list[tuple[int, Answer]], should_stop: Callable[[], bool]
    ) -> Iterator[tuple[int, Answer]]:
        assert not should_stop()
        self.on_step(self.answered)
        while batch:
            self.answered.add(batch[-1][0])
            yield batch.pop()


@pytest.mark.parametrize(("dtype", "asks"), [("bfloat16", 1), ("float32", 5)])
def test_an_engine_answers_its_works_as_one_stream(tmp_path, monkeypatch, dtype, asks):
    """The batch has rows of several works, but in float32; messages say which rows, in order."""
    engine, sent, begun_after = BatchEngine(), list[EngineMessage](), list[int]()
    engine.dtype = dtype
    monkeypatch.setattr(model, "load_engine", lambda *_: engine)
    monkeypatch.setattr("torch.set_num_threads", lambda threads: None)
    make_images(tmp_path / "photos", 9, broken=[2, 3, 5])
    options = {"model": "demo", "workers": 0, "prompt": ("a", "b")}
    request = make_request("ask", (str(tmp_path / "photos"),), options)
    inventory = Inventory.scan(request.sources, read_options(request), None)
    record_inventory(inventory, LocalStore(tmp_path / "state", create=True))
    engine_task = EngineTask(request, EngineSlot(1), str(tmp_path / "state"), RowSchema())
    works = [Work(range(1, 4)), Work(range(4, 6)), Work(range(6, 8)), Work(range(10, 18))]

    def given() -> Iterator[Work]:
        yield from works
        engine.has_all_works.set()

    def send(message: EngineMessage) -> None:
        sent.append(message)
        if isinstance(message, WorkBegun):
            begun_after.append(engine.image_stats.hits)

    def check_sent(answered: set[int]) -> None:
        messages = [message for message in sent if isinstance(message, RowsAnswered)]
        rows = {number for message in messages for number in message.rows}
        assert answered <= rows, "what ends in a step is sent before the next one"

    engine.on_step = check_sent
    answer_works(engine_task, rows_of_task(engine_task), given(), lambda: False, send)
    assert (engine.asked, engine.most > 4) == (asks, True)
    assert begun_after == [0, 2, 2, 2], "as their first images are taken, not when they are given"
    info, *messages = sent
    assert isinstance(info, EngineInfo)
    by_work: dict[range, list[EngineMessage]] = {work.rows: [] for work in works}
    for message in messages:
        assert isinstance(message, WorkBegun | RowsAnswered)
        by_work[next(rows for rows in by_work if message.rows.start in rows)].append(message)
    tally, stamped = Tally(), dict[int, bool]()
    for rows_of_work, (begun, *answered) in by_work.items():
        assert begun == WorkBegun(rows_of_work)
        assert [number for message in answered for number in message.rows] == [*rows_of_work]
        for message in answered:
            tally.add(message.counts, message.errors)
            stamped |= {index: stamp is not None for index, stamp in message.stamps.items()}
            for number, line in zip(message.rows, message.lines or (), strict=True):
                row = json.loads(line)
                assert (row["index"], row["prompt"]) == (number // 2, "ab"[number % 2])
                assert (row["error"] is not None) == (row["index"] in (2, 3, 5))
                assert stamped[row["index"]] == (row["error"] is None), "no later than its row"
    answers = [message for message in messages if isinstance(message, RowsAnswered)]
    assert all(len(message.rows) == 1 for message in answers if message.errors)
    rows = [message.rows for message in answers]
    assert max(map(len, rows)) > 1, "what ends in one step is one message"
    assert [numbers.start for numbers in rows] == sorted(numbers.start for numbers in rows)
    assert (tally.images, tally.hits, tally.prompts) == (8, 5, 10)
    assert (tally.rows, tally.errors.total()) == (15, 6)


def test_stopping_run_does_not_wait_for_loading_workers():
    workers = FakeWorkers(100, should_stop=lambda: bool(workers.engines))
    workers.ready = lambda: iter(workers.engines[:1])
    assert outcome(workers) == ([0], [])
    assert [engine.is_stopped for engine in workers.engines] == [True, False]
