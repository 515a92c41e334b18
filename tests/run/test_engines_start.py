"""An engine process starts: its images are decoded while it loads its model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest

from pgcli.run import task
from pgcli.run.request.make import make_request
from pgcli.run.workers import engines, worker
from pgcli.run.workers.slots import EngineSlot
from pgcli.stores import LocalStore


class Loads(Exception):
    """The model is to be loaded."""


def test_decoding_processes_start_before_the_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoding: list[int] = []

    def load_engine(*_: Any) -> None:
        decoding.append(len(psutil.Process().children()))
        raise Loads

    monkeypatch.setattr(task, "load_engine", load_engine)
    LocalStore(tmp_path / "rows.jsonl.pgcli", create=True)
    values = {"model": "demo", "workers": 1, "output": str(tmp_path / "rows.jsonl")}
    request = make_request("caption", (str(tmp_path),), values)
    work = worker.EngineTask(request, EngineSlot(1), "run")
    before = len(psutil.Process().children())
    with pytest.raises(Loads):
        next(worker.compute(work, lambda: False))
    assert decoding == [before + 1]


@pytest.mark.parametrize(
    ("cores", "count", "workers"), [(2, 1, 2), (2, 2, 1), (2, 4, 1), (16, 8, 2), (64, 8, 4)]
)
def test_engines_decode_on_their_share_of_the_cores(
    monkeypatch: pytest.MonkeyPatch, cores: int, count: int, workers: int
) -> None:
    monkeypatch.setattr(engines, "processors", lambda: float(cores))
    request = make_request("caption", ("photos",), {"model": "demo"})
    slots = [EngineSlot(1)] * count
    assert engines.with_own_decoding(request, slots).input.workers == workers
    named = make_request("caption", ("photos",), {"model": "demo", "workers": 3})
    assert engines.with_own_decoding(named, slots).input.workers == 3
    on_gpus = [EngineSlot(1, "cuda:0")] * count
    assert engines.with_own_decoding(request, on_gpus).input.workers is None
