"""Each row of a queue is answered once or lost with its image."""

from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgcli.run.workers.work import (
    EARLY_RANGES,
    MAX_DEATHS,
    MAX_EARLY_BYTES,
    MIN_ROWS,
    Work,
    WorkQueue,
)

AHEAD = 8


def queue_of(total: int, *, workers: int = 1, size: int = 8, per_item: int = 1) -> WorkQueue:
    return WorkQueue([Work(range(total))], workers=workers, size=size, per_item=per_item)


def fed(queue: WorkQueue, worker: str, ahead: int = AHEAD) -> list[Work]:
    return [*queue.feed(worker, ahead)]


def answer(queue: WorkQueue, worker: str, rows: Iterable[int]) -> None:
    for number in rows:
        queue.answered(worker, range(number, number + 1))


def finish(queue: WorkQueue, worker: str, works: Iterable[Work]) -> None:
    """The worker answers all rows of its works."""
    for work in works:
        queue.begun(worker, work.rows)
        assert queue.answered(worker, work.rows), "all of the range"


def die_of(queue: WorkQueue, work: Work) -> list[range]:
    """A worker that is fed this work first dies of it."""
    first, *_ = fed(queue, "victim", 1)
    assert first.rows == work.rows
    queue.begun("victim", first.rows)
    return queue.died("victim")


def test_workers_get_rows_in_order_up_to_the_lookahead():
    queue = queue_of(80)
    first, second = fed(queue, "a"), fed(queue, "b", 9)
    assert [work.rows for work in (*first, *second)] == [range(8), range(8, 16), range(16, 24)]
    assert not fed(queue, "a")
    queue.begun("a", range(8))
    (third,) = fed(queue, "a")
    assert third.rows == range(24, 32), "begun rows do not count, even before they are answered"
    answer(queue, "a", range(8))
    assert queue.remaining == 72
    assert not fed(queue, "a"), "rows that are not begun count"


def test_ranges_shrink_near_the_end():
    queue, sizes, rows = queue_of(200, workers=4, size=64), [], []
    while queue:
        for worker in "abcd":
            works = fed(queue, worker, 64)
            sizes += [len(work.rows) for work in works]
            rows += [row for work in works for row in work.rows]
            finish(queue, worker, works)
    assert sizes == sorted(sizes, reverse=True)
    assert (max(sizes[:4]) <= 50, rows) == (True, [*range(200)])
    assert {size for size in sizes[:-1] if size <= MIN_ROWS} == {MIN_ROWS}
    last = queue_of(20, workers=2, size=4)
    assert sum(len(work.rows) for work in fed(last, "a", 64)) == 12, "the others get the rest"


def test_fixed_ranges_depend_on_the_input_only():
    for workers in (1, 3):
        queue = WorkQueue([Work(range(10, 200))], workers=workers, size=64, is_fixed=True)
        ends = [work.rows.stop for number in range(4) for work in fed(queue, number, 64)]
        assert ends == [64, 128, 192, 200]


@pytest.mark.parametrize("size", [1, 7])
def test_rows_of_an_image_stay_together(size):
    queue = WorkQueue([Work(range(2, 17))], workers=1, size=size, per_item=3)
    ends = [work.rows.stop for work in fed(queue, "a", 99)]
    assert ends == ([3, 6, 9, 12, 15, 17] if size == 1 else [9, 15, 17])


def test_death_counts_for_begun_ranges_only():
    queue = queue_of(24, workers=2)
    works = fed(queue, "a", 16)
    queue.begun("a", works[0].rows)
    answer(queue, "a", range(3))
    assert queue.died("a") == []
    again = fed(queue, "b", 12)
    assert again == [Work(range(3, 8), deaths=1), Work(range(8, 16))]


def test_ended_worker_returns_its_rows_without_a_death():
    queue = queue_of(8)
    (work,) = fed(queue, "a")
    queue.begun("a", work.rows)
    answer(queue, "a", range(2))
    queue.take_back("a")
    assert fed(queue, "b") == [Work(range(2, 8))]
    queue.take_back("unknown")


def test_after_two_deaths_images_are_answered_one_by_one():
    queue = queue_of(16, workers=3, per_item=2)
    (busy,) = fed(queue, "b")
    for _ in range(MAX_DEATHS):
        assert die_of(queue, Work(range(8, 16))) == []
    (alone,) = fed(queue, "a")
    assert alone == Work(range(8, 10), is_alone=True)
    assert not fed(queue, "a", 99), "a worker has no other rows beside the image"
    assert not fed(queue, "b", 99), "it gets no image before it has answered its range"
    finish(queue, "b", [busy])
    for rows in (range(10, 12), range(12, 14), range(14, 16)):
        (alone,) = fed(queue, "b", 99)
        assert alone == Work(rows, is_alone=True)
        finish(queue, "b", [alone])
    assert not queue


def test_image_that_kills_two_more_workers_is_lost():
    queue = queue_of(4, per_item=2)
    for _ in range(MAX_DEATHS):
        die_of(queue, Work(range(4)))
    assert die_of(queue, Work(range(2))) == []
    (alone,) = fed(queue, "a")
    queue.begun("a", alone.rows)
    answer(queue, "a", [0])
    assert queue.died("a") == [range(1, 2)], "the row that was answered is not lost"
    finish(queue, "b", fed(queue, "b"))
    assert (bool(queue), queue.remaining) == (False, 0)


def test_workers_wait_for_a_slow_range():
    """Answered rows after it wait in memory."""
    queue = queue_of(1000, workers=2, size=8)
    slow = fed(queue, "a", 8)
    answered = 0
    while works := fed(queue, "b"):
        finish(queue, "b", works)
        answered += sum(len(work.rows) for work in works)
    assert answered == 2 * EARLY_RANGES * 8 - 8
    finish(queue, "a", slow)
    assert fed(queue, "b")[0].rows.start == 2 * EARLY_RANGES * 8


def test_workers_get_no_early_rows_while_too_many_bytes_wait():
    queue = queue_of(100, workers=2, size=8)
    slow = fed(queue, "a", 8)
    queue.early_bytes = MAX_EARLY_BYTES + 1
    assert fed(queue, "b") == []
    queue.died("a")
    assert fed(queue, "b", 8) == slow, "the first row never waits"


def test_unexpected_messages_raise():
    queue = queue_of(16)
    fed(queue, "a", 16)
    for rows in (range(1, 2), range(9, 10), range(16, 17), range(9), range(0)):
        with pytest.raises(AssertionError, match="are not the next rows"):
            queue.answered("a", rows)
    assert not queue.answered("a", range(7))
    for rows in (range(6, 7), range(8), range(7, 9)):
        with pytest.raises(AssertionError, match="are not the next rows"):
            queue.answered("a", rows)
    assert queue.answered("a", range(7, 8))


ACTIONS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("feggkkkd")), min_size=20)


@given(
    actions=ACTIONS, total=st.integers(1, 40), per_item=st.integers(1, 3), size=st.integers(1, 9)
)
def test_each_row_is_answered_once_or_lost(actions, total, per_item, size):
    queue = queue_of(total, workers=3, size=size, per_item=per_item)
    has: dict[str, list[tuple[Work, list[int]]]] = {worker: [] for worker in "abc"}
    begun: dict[str, int] = dict.fromkeys("abc", 0)
    answered, deaths, lost = Counter[int](), Counter[int](), list[int]()

    def feed(worker: str) -> None:
        has[worker] += [(work, [*work.rows]) for work in fed(queue, worker, size + total % 9)]
        hunters = [works for works in has.values() if any(work.is_alone for work, _ in works)]
        assert {len(works) for works in hunters} <= {1}

    def go_on(worker: str) -> None:
        """Begin all ranges, then answer a row, or end the first range."""
        for work, _ in has[worker][begun[worker] :]:
            queue.begun(worker, work.rows)
        begun[worker] = len(has[worker])
        for work, rows in has[worker][:1]:
            ready, rows[:] = rows[: 1 + total % 3], rows[1 + total % 3 :]
            answered.update(ready)
            is_end = queue.answered(worker, range(ready[0], ready[-1] + 1))
            assert is_end == (ready[-1] + 1 == work.rows.stop) == (not rows)
            if is_end:
                has[worker].pop(0)
                begun[worker] -= 1

    def end(worker: str, *, dies: bool) -> None:
        if dies:
            deaths.update(row for _, rows in has[worker][: begun[worker]] for row in rows)
            lost.extend(row for rows in queue.died(worker) for row in rows)
        else:
            queue.take_back(worker)
        has[worker], begun[worker] = [], 0

    for worker, action in actions:
        if action in "fk":
            feed(worker)
        if action in "gk":
            go_on(worker)
        if action in "ekd":
            end(worker, dies=action != "e")
    end("a", dies=False)
    end("b", dies=False)
    while queue or has["c"]:
        feed("c")
        go_on("c")
    assert sorted([*answered.elements(), *lost]) == [*range(total)]
    assert {deaths[row] for row in lost} <= {2 * MAX_DEATHS}
    assert max(deaths.values(), default=0) <= 2 * MAX_DEATHS
