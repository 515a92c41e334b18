"""An engine process starts: its images are decoded while it loads its model."""

from threading import Event
from typing import Any

import pytest

from pgcli.device import machine
from pgcli.inputs import Inventory
from pgcli.rows import RowSchema
from pgcli.run import model
from pgcli.run.checks import read_options
from pgcli.run.input_rows import RunRows
from pgcli.run.request import make_request
from pgcli.run.run_output import record_inventory
from pgcli.run.workers import engine, engines
from pgcli.run.workers.work import EngineSlot, Work
from pgcli.stores import LocalStore
from tests.support.stub_runs import make_images


class Loads(Exception):
    """The model is to be loaded."""


def test_images_are_decoded_while_the_model_is_loaded(tmp_path, monkeypatch):
    taken: list[str] = []
    all_taken = Event()
    numbered = RunRows.numbered

    def noted(rows: RunRows, numbers: range) -> Any:
        for pair in numbered(rows, numbers):
            yield pair
            taken.append(pair[1].id)
        all_taken.set()

    def load_engine(*_: Any) -> None:
        assert all_taken.wait(60)
        assert taken == ["000.png", "001.png"]
        raise Loads

    monkeypatch.setattr(RunRows, "numbered", noted)
    monkeypatch.setattr(model, "load_engine", load_engine)
    make_images(tmp_path / "photos", 2)
    request = make_request("caption", (str(tmp_path / "photos"),), {"model": "demo", "workers": 1})
    inventory = Inventory.scan(request.sources, read_options(request), None)
    record_inventory(inventory, LocalStore(tmp_path / "state", create=True))
    task_ = engine.EngineTask(request, EngineSlot(1), str(tmp_path / "state"), RowSchema())
    rows = engine.rows_of_task(task_)
    with pytest.raises(Loads):
        engine.answer_works(task_, rows, iter([Work(range(2))]), lambda: False, print)


@pytest.mark.parametrize(
    ("cores", "count", "workers"), [(2, 1, 2), (2, 2, 1), (2, 4, 1), (16, 8, 2), (64, 8, 4)]
)
def test_engines_decode_on_their_share_of_the_cores(monkeypatch, cores, count, workers):
    monkeypatch.setattr(engines, "processors", lambda: float(cores))
    request = make_request("caption", ("photos",), {"model": "demo"})
    assert engines.with_own_decoding(request, EngineSlot(1), count).input.workers == workers
    named = make_request("caption", ("photos",), {"model": "demo", "workers": 3})
    for slot in (EngineSlot(1), EngineSlot(1, "cuda:0")):
        assert engines.with_own_decoding(named, slot, count).input.workers == 3


def test_engines_on_eight_gpus_share_all_cores_but_one(monkeypatch):
    monkeypatch.setattr(machine, "processors", lambda: 16.0)
    request = make_request("caption", ("photos",), {"model": "demo"})
    slots = [EngineSlot(1, f"cuda:{index}") for index in range(8)]
    shares = [engines.with_own_decoding(request, slot, 8).input.workers for slot in slots]
    assert shares == [2] * 7 + [1]
