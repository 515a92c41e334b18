"""A run that starts small: its first rows come before the images of a whole batch are there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pgcli.engine.engine import InferenceEngine
from pgcli.engine.scheduler import FIRST_ROWS
from pgcli.tasks import Question
from tests.support.limited_memory import LimitedMemory, fresh, stream

QUESTION = Question("ask", None, 7)
CHOICES = ("yes", "no")


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
    for row_index, answer in engine.ask(counted(), QUESTION):
        rows[row_index] = answer
        before.append(taken[0])
    return rows, before


@pytest.mark.parametrize("choices", [(), CHOICES], ids=["generated", "choices"])
def test_first_rows_come_after_a_few_images_and_are_the_same(
    loaded: InferenceEngine, choices: tuple[str, ...]
) -> None:
    plain, late = answers(fresh(loaded, 16), small=False, choices=choices)
    small, early = answers(fresh(loaded, 16), small=True, choices=choices)
    assert early[:FIRST_ROWS] == [FIRST_ROWS] * FIRST_ROWS
    assert choices or min(late) >= 16
    assert [small[row].answer for row in range(20)] == [plain[row].answer for row in range(20)]
    assert [small[row].batch for row in range(FIRST_ROWS)] == [FIRST_ROWS] * FIRST_ROWS


def test_only_the_next_question_starts_small(loaded: InferenceEngine) -> None:
    engine = fresh(loaded, 16)
    assert answers(engine, small=True)[1][0] == FIRST_ROWS
    assert engine.starts_small is False


def test_a_small_batch_size_is_not_made_smaller(loaded: InferenceEngine) -> None:
    rows, _ = answers(fresh(loaded, 7), small=True)
    assert rows[0].batch == 7


def test_oom_in_the_first_batch_loses_no_row(
    loaded: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, _ = answers(fresh(loaded, 16), small=False)
    memory = LimitedMemory(monkeypatch, "decode", 2)
    found, _ = answers(fresh(loaded, 16), small=True)
    assert memory.failures
    assert {row: one.answer for row, one in found.items()} == {
        row: one.answer for row, one in expected.items()
    }


def test_a_batch_of_a_small_model_is_not_waited_for(loaded: InferenceEngine) -> None:
    assert not loaded.is_large
