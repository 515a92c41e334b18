"""Places that are taken again as rows end, and groups that fill a batch evenly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pgcli import tasks
from pgcli.checkpoints.find import Checkpoint
from pgcli.engine import engine as engines
from pgcli.engine.engine import Engine
from pgcli.engine.generate import Running
from pgcli.engine.loader import load
from pgcli.engine.trial import Trial
from pgcli.model.paligemma import PaliGemma
from pgcli.records import DecodedImage, Item
from tests.support.tiny import RESOLUTION


@pytest.fixture(scope="module")
def loaded(tiny: Path) -> Engine:
    return load(Checkpoint("tiny", tiny), device="cpu", dtype="float32", batch_size=8)


def sized(loaded: Engine, batch_size: int) -> Engine:
    kept = (loaded.model, loaded.tokenizer, loaded._preprocessing)
    return Engine(*kept, label="tiny", batch_size=batch_size)


def pictures(lengths: list[int]) -> list[tuple[int, DecodedImage]]:
    pixels = np.zeros((RESOLUTION, RESOLUTION, 3), dtype=np.uint8)
    items = [Item(k, str(k), str(k), prompts=("a",)) for k in range(len(lengths))]
    return [(k, DecodedImage(one, 8, 8, pixels, 0.0)) for k, one in enumerate(items)]


class Passes:
    """What was read and stepped, in order: `(rows that joined, rows beside them)`, or `step`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.joined: list[tuple[int, int]] = []
        self.steps: list[int] = []
        join, step = Running.join, PaliGemma.step

        def joining(running: Running, patch_BPD: Any, prompts: Any, rows: Any) -> Any:
            self.joined.append((len(rows), len(running.rows)))
            return join(running, patch_BPD, prompts, rows)

        def stepping(model: PaliGemma, token_A: Any, places: Any) -> Any:
            self.steps.append(len(token_A))
            return step(model, token_A, places)

        monkeypatch.setattr(Running, "join", joining)
        monkeypatch.setattr(PaliGemma, "step", stepping)


def answered(engine: Engine, lengths: list[int]) -> list[int]:
    """The places in the order in which their rows ended, each of so many tokens."""
    question, trial = tasks.caption("en"), Trial(tuple(lengths))
    rows = list(engine.ask(iter(pictures(lengths)), question, trial=trial))
    assert [row.tokens for _, row in sorted(rows, key=lambda row: row[0])] == lengths
    return [place for place, _ in rows]


def test_a_quarter_of_the_places_is_taken_again_while_the_others_go_on(
    loaded: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = Passes(monkeypatch)
    lengths = [2, 3, 3, 9, 9, 9, 9, 9, 5, 5, 5, 5, 5, 5, 5, 5]
    order = answered(sized(loaded, 8), lengths)
    # one free place of eight is waited with, three are taken at once
    assert passes.joined[:2] == [(8, 0), (3, 5)]
    assert order.index(8) < order.index(3)
    assert len(passes.steps) < 16


def test_rows_of_one_length_are_read_together(
    loaded: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = Passes(monkeypatch)
    answered(sized(loaded, 8), [4] * 19)
    assert passes.joined == [(8, 0), (8, 0), (3, 0)]


@pytest.mark.parametrize(
    ("batch_size", "fitting", "groups"),
    [(8, 7, [8]), (8, 3, [3, 3, 2]), (12, 7, [6, 6]), (5, 9, [5]), (1, 9, [1]), (4, 1, [1] * 4)],
)
def test_groups_fill_a_batch_evenly(
    loaded: Engine,
    monkeypatch: pytest.MonkeyPatch,
    batch_size: int,
    fitting: int,
    groups: list[int],
) -> None:
    tokens = fitting * (loaded.model.config.image_tokens + engines.USUAL_PROMPT)
    monkeypatch.setitem(engines.GROUP_TOKENS, "cpu", tokens)
    passes = Passes(monkeypatch)
    answered(sized(loaded, batch_size), [9] * batch_size)
    assert [rows for rows, _ in passes.joined] == groups
    assert set(passes.steps[-4:]) == {batch_size}
