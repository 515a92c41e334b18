"""The scheduler groups equal prompt lengths, and refills before it decodes."""

from collections import abc
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgcli import tasks
from pgcli.engine.engine import InferenceEngine
from pgcli.engine.model_runner import ModelRunner
from pgcli.engine.sampler import SamplingParams
from pgcli.engine.scheduler import FIRST_ROWS, RequestQueue
from pgcli.engine.sequence import Sequence
from pgcli.tasks import Question
from tests.support.sequences import fresh, stream

lengths_of_prompts = st.lists(st.integers(1, 9), max_size=60)
sizes = st.integers(1, 6)


@st.composite
def sizes_and_windows(draw: st.DrawFn) -> tuple[int, int]:
    """A batch size, and a window of at least one batch."""
    size = draw(sizes)
    return size, size * draw(st.integers(1, 5)) + draw(st.integers(0, 3))


def request(row_index: int, length: int) -> Sequence:
    return Sequence(row_index, "", (0,) * length, max_new_tokens=1)


class Arrivals:
    """An iterator of sequences that counts the taken ones."""

    def __init__(self, lengths: abc.Sequence[int]):
        self.lengths = lengths
        self.taken = 0

    def __iter__(self) -> Iterator[Sequence]:
        for row_index, length in enumerate(self.lengths):
            self.taken += 1
            yield request(row_index, length)


def batches(arrivals: Iterable[Sequence], *, size: int, window: int) -> Iterator[list[Sequence]]:
    """The batches in the order in which the engine runs them."""
    queue = RequestQueue(size=size, window=window)
    for arrival in arrivals:
        queue.add(arrival)
        while queue.is_due():
            yield queue.take()
    while queue:
        yield queue.take()


def groups(lengths: abc.Sequence[int], size: int, window: int) -> list[list[int]]:
    """The row indices in each group."""
    found = batches(Arrivals(lengths), size=size, window=window)
    return [[request.row_index for request in batch] for batch in found]


@given(lengths_of_prompts, sizes_and_windows())
def test_full_groups_form_around_the_oldest_sequence(lengths, how):
    """Each sequence is in one group, and only the last group is not full.

    Lengths mix only in a full window or at the end, and no sequence waits for more groups than
    the window.
    """
    size, window = how
    arrivals, waiting = Arrivals(lengths), set(range(len(lengths)))
    found: list[list[int]] = []
    taken_at: list[int] = []
    for batch in batches(arrivals, size=size, window=window):
        rows = [request.row_index for request in batch]
        assert rows[0] == min(waiting)
        assert waiting >= set(rows)
        queued = arrivals.taken - len(lengths) + len(waiting)
        assert queued <= window
        if len({lengths[row] for row in rows}) > 1:
            assert queued == window or arrivals.taken == len(lengths)
        for row in rows:
            assert sum(taken > row for taken in taken_at) < window
        waiting -= set(rows)
        found.append(rows)
        taken_at.append(arrivals.taken)
    assert not waiting
    assert all(len(rows) == size for rows in found[:-1])
    assert all(1 <= len(rows) <= size for rows in found[-1:])


@given(st.integers(0, 40), st.integers(1, 9), sizes_and_windows())
def test_prompts_of_one_length_keep_their_order(count, length, how):
    size, window = how
    arrivals = Arrivals([length] * count)
    row_index = 0
    for batch in batches(arrivals, size=size, window=window):
        assert [request.row_index for request in batch] == list(
            range(row_index, row_index + len(batch))
        )
        row_index += len(batch)
        assert arrivals.taken == row_index, "a full group waits"


# --- refill before decode


class Passes:
    """The prefilled groups with the number of running rows, and the rows of each step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.joined: list[tuple[int, int]] = []
        self.steps: list[int] = []
        prefill, decode = ModelRunner.prefill, ModelRunner.decode

        def prefilling(runner: ModelRunner, patch_BPD: Any, group: Any) -> Any:
            self.joined.append((len(group), len(runner.rows)))
            return prefill(runner, patch_BPD, group)

        def decoding(runner: ModelRunner) -> Any:
            self.steps.append(len(runner.rows))
            return decode(runner)

        monkeypatch.setattr(ModelRunner, "prefill", prefilling)
        monkeypatch.setattr(ModelRunner, "decode", decoding)


def answered(engine: InferenceEngine, lengths: list[int]) -> list[int]:
    """The row indices in the order of completion; each row has the given number of tokens."""
    exact = [SamplingParams(max_new_tokens=length, ignore_eos=True) for length in lengths]
    rows = list(engine.ask(stream(len(lengths), ["a"]), tasks.caption("en"), exact))
    assert [row.tokens for _, row in sorted(rows, key=lambda row: row[0])] == lengths
    return [row_index for row_index, _ in rows]


def test_a_quarter_of_the_rows_is_refilled_while_the_others_run(loaded, monkeypatch):
    passes = Passes(monkeypatch)
    lengths = [2, 3, 3, 9, 9, 9, 9, 9, 5, 5, 5, 5, 5, 5, 5, 5]
    order = answered(fresh(loaded, 8), lengths)
    # one free row of eight is not refilled alone, three are refilled at once
    assert passes.joined[:2] == [(8, 0), (3, 5)]
    assert order.index(8) < order.index(3)
    assert len(passes.steps) < 16


# --- a run that starts small


def answers(
    engine: InferenceEngine, *, small: bool, choices: tuple[str, ...] = ()
) -> tuple[dict[int, Any], list[int]]:
    """The rows, and how many images were taken before each."""
    taken, before, rows = [0], [], {}

    def counted() -> Iterator[Any]:
        for found in stream(20, ["caption en"], choices):
            taken[0] += 1
            yield found

    engine.starts_small = small
    for row_index, answer in engine.ask(counted(), Question("ask", None, 7)):
        rows[row_index] = answer
        before.append(taken[0])
    return rows, before


@pytest.mark.parametrize("choices", [(), ("yes", "no")], ids=["generated", "choices"])
def test_first_rows_need_only_a_few_images_and_are_the_same(loaded, choices):
    """Before a whole batch of images has arrived, and only for the next question."""
    engine = fresh(loaded, 16)
    small, early = answers(engine, small=True, choices=choices)
    assert engine.starts_small is False
    plain, late = answers(engine, small=False, choices=choices)
    assert early[:FIRST_ROWS] == [FIRST_ROWS] * FIRST_ROWS
    assert choices or min(late) >= 16
    assert [small[row].answer for row in range(20)] == [plain[row].answer for row in range(20)]
    assert [small[row].batch for row in range(FIRST_ROWS)] == [FIRST_ROWS] * FIRST_ROWS
    assert answers(fresh(loaded, 7), small=True)[0][0].batch == 7
    assert not engine.is_large
