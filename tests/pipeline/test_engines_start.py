"""An engine process starts: its images are decoded while it loads its model."""

from threading import Event
from typing import Any

import pytest

from pgcli.pipeline import run as runs
from pgcli.pipeline import task
from pgcli.pipeline.request import RunRequest
from pgcli.pipeline.request.make import make_request
from pgcli.pipeline.rows import Numbered
from pgcli.pipeline.run import Run
from pgcli.pipeline.workers import engines, worker
from pgcli.pipeline.workers.row_images import RowImages
from pgcli.pipeline.workers.slots import EngineSlot
from tests.support.stub_runs import make_images


class Loads(Exception):
    """The model is to be loaded."""


def test_images_are_decoded_while_the_model_is_loaded(tmp_path, monkeypatch):
    taken: list[str] = []
    all_taken = Event()

    class Images(RowImages):
        def prepare(self, items: Numbered | None) -> None:
            super().prepare(noted(items or iter(())))

    def noted(items: Numbered) -> Numbered:
        for pair in items:
            yield pair
            taken.append(pair[1].id)
        all_taken.set()

    def load_engine(*_: Any) -> None:
        assert all_taken.wait(60)
        assert taken == ["000.png", "001.png"]
        raise Loads

    def run_engines(run: Run, slots: object, request: RunRequest, *_: Any, **__: Any) -> None:
        next(worker.compute(worker.EngineTask(request, EngineSlot(1), run="1"), lambda: False))

    monkeypatch.setattr(worker, "RowImages", Images)
    monkeypatch.setattr(task, "load_engine", load_engine)
    monkeypatch.setattr(runs, "run_engines", run_engines)
    make_images(tmp_path / "photos", 2)
    values = {"model": "demo", "workers": 1, "engines": 2, "output": str(tmp_path / "rows.jsonl")}
    with pytest.raises(Loads):
        runs.run(make_request("caption", (str(tmp_path / "photos"),), values))


@pytest.mark.parametrize(
    ("cores", "count", "workers"), [(2, 1, 2), (2, 2, 1), (2, 4, 1), (16, 8, 2), (64, 8, 4)]
)
def test_engines_decode_on_their_share_of_the_cores(monkeypatch, cores, count, workers):
    monkeypatch.setattr(engines, "processors", lambda: float(cores))
    request = make_request("caption", ("photos",), {"model": "demo"})
    slots = [EngineSlot(1)] * count
    assert engines.with_own_decoding(request, slots).input.workers == workers
    named = make_request("caption", ("photos",), {"model": "demo", "workers": 3})
    assert engines.with_own_decoding(named, slots).input.workers == 3
    on_gpus = [EngineSlot(1, "cuda:0")] * count
    assert engines.with_own_decoding(request, on_gpus).input.workers is None
