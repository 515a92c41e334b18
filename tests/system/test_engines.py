"""`--engines`: their number, their threads and their devices."""

from functools import partial

import pytest

from pgcli.cli.main import main
from pgcli.run.workers.work import EngineSlot, engine_slots
from tests.support.runs import EXAMPLES


def test_small_models_have_one_thread_for_each_engine():
    slots = partial(engine_slots, device="cpu", cores=4)
    assert slots(None, checkpoint_bytes=10**6, rows=10) == [EngineSlot(1)]
    assert slots(None, checkpoint_bytes=10**6, rows=10**6) == [EngineSlot(1)] * 4
    assert slots(2, checkpoint_bytes=10**6, rows=10) == [EngineSlot(1)] * 2
    assert slots(None, checkpoint_bytes=10**10, rows=10**6) == [EngineSlot(4)]
    assert slots(2, checkpoint_bytes=10**10, rows=10) == [EngineSlot(2)] * 2
    assert slots(8, checkpoint_bytes=10**10, rows=10) == [EngineSlot(1)] * 8


@pytest.mark.parametrize(
    ("rows", "cores", "engines"),
    [(499, 2, 1), (500, 2, 2), (500, 1, 1), (1000, 16, 4), (10**6, 64, 8)],
)
def test_the_engine_count_is_the_fastest(rows, cores, engines):
    assert len(engine_slots(None, "cpu", 10**6, rows=rows, cores=cores)) == engines


def test_more_engines_than_gpus_are_an_error(monkeypatch):
    monkeypatch.setattr("pgcli.run.workers.work.visible_gpus", lambda: 2)
    assert [s.device for s in engine_slots(None, "cuda:1", 10**10, rows=500)] == ["cuda:1"]
    assert main(["caption", str(EXAMPLES / "one.png"), "--model", "demo", "--engines", "3"]) == 17
