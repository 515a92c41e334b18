"""Pixels are copied to a device while it computes; streams and host wait where they must."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pgcli.checkpoints.find import Checkpoint
from pgcli.engine import engine as engines
from pgcli.engine import memory, model_runner
from pgcli.engine.engine import InferenceEngine
from pgcli.engine.loader import load
from pgcli.engine.model_runner import ModelRunner
from pgcli.engine.pixel_staging import PixelStager, StagedPixels
from pgcli.tasks import Question
from tests.support.fake_streams import FakeEvent, FakeStream, FakeStreams
from tests.support.limited_memory import fresh, stream

CPU = torch.device("cpu")


class Stager(PixelStager):
    """A stager whose buffers are checked."""

    def __init__(self, streams: FakeStreams, *, images: int):
        super().__init__(CPU, streams, images=images)
        self._detector = streams

    def _allocated(self, shape: torch.Size) -> StagedPixels:
        made = super()._allocated(shape)
        self._detector.add(made.host_NRRC, "host")
        self._detector.add(made.device_NRRC, "device")
        return made


def pixels(*keys: int) -> dict[int, Any]:
    return {key: np.full((2, 2, 3), key, np.uint8) for key in keys}


def read(stager: PixelStager, *keys: int) -> None:
    found = stager.read(pixels(*keys), lambda pixels_NRRC: pixels_NRRC.clone())
    assert found[:, 0, 0, 0].tolist() == list(keys)


def run_groups(stager: PixelStager) -> None:
    """Groups that were staged, are split, come in another order, are larger, or were not staged."""
    read(stager, 1, 2, 3)
    stager.stage(pixels(4, 5, 6))
    stager.stage(pixels(4, 5, 6))
    read(stager, 4)
    stager.stage(pixels(5, 6))
    read(stager, 6, 5)
    for start in range(10, 40, 10):
        stager.stage(pixels(start, start + 1, start + 2, start + 3))
        read(stager, start, start + 1, start + 2)
    read(stager, *range(50, 55))
    read(stager, 60)


def test_every_use_of_a_buffer_waits_for_the_one_before() -> None:
    with FakeStreams() as streams:
        run_groups(Stager(streams, images=3))
    # the group of 4 to 6 is copied once, though it is staged twice and read in parts
    assert streams.accesses.count("copies writes device") == 7
    assert streams.accesses.count("compute reads device") == 8


def no_wait(self: object, *given: object) -> None:
    """In place of a wait."""


def without_wait_of(name: str) -> Callable[[pytest.MonkeyPatch], None]:
    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        real = FakeStream.wait_event

        def wait_event(self: FakeStream, event: FakeEvent) -> None:
            if self.name != name:
                real(self, event)

        monkeypatch.setattr(FakeStream, "wait_event", wait_event)

    return plant


def without_wait_of_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeEvent, "synchronize", no_wait)


def recorded_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group is marked as read before it is."""
    real = PixelStager.read

    def early(self: PixelStager, images: Any, reader: Callable[[Tensor], Any]) -> Any:
        pixels_NRRC = real(self, images, lambda pixels_NRRC: pixels_NRRC)
        return reader(pixels_NRRC)

    monkeypatch.setattr(PixelStager, "read", early)


FAULTS = [
    without_wait_of("compute"),
    without_wait_of("copies"),
    without_wait_of_host,
    recorded_too_early,
]


@pytest.mark.parametrize("plant", FAULTS)
def test_a_missing_wait_is_found(
    monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    plant(monkeypatch)
    with FakeStreams() as streams, pytest.raises(AssertionError, match="still uses"):
        run_groups(Stager(streams, images=3))


# --- in the engine


@pytest.fixture
def engine(tiny: Path) -> InferenceEngine:
    return load(Checkpoint("tiny", tiny), device="cpu", dtype="float32", batch_size=4)


def test_copies_and_reports_overlap_with_steps_in_flight(
    engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU: a group's images are copied while a step runs; the next runs before a report."""
    question = Question("ask", None, 9)
    expected = sorted(
        (row, answer.answer) for row, answer in fresh(engine, 4).ask(stream(12), question)
    )
    monkeypatch.setitem(model_runner.ASYNC_DEPTH, "cpu", 1)
    monkeypatch.setitem(memory.GROUP_TOKENS, "cpu", 2 * (16 + memory.USUAL_PROMPT))
    launches: list[ModelRunner] = []
    steps_at_copies: list[int] = []
    launches_at_ends: dict[int, int] = {}
    real_enqueue, real_fetch = ModelRunner._enqueue, ModelRunner._fetch_tokens
    real_copy = PixelStager._copy

    def enqueue(self: ModelRunner, *given: Any, **options: Any) -> None:
        launches.append(self)
        real_enqueue(self, *given, **options)

    def fetch_tokens(self: ModelRunner, step: Any) -> None:
        real_fetch(self, step)
        for one, _ in step.rows:
            if one.finished:
                launches_at_ends.setdefault(one.row_index, len(launches))

    def copy(self: PixelStager, images: Any) -> StagedPixels:
        steps_at_copies.append(len(launches[-1]._in_flight) if launches else 0)
        return real_copy(self, images)

    monkeypatch.setattr(ModelRunner, "_enqueue", enqueue)
    monkeypatch.setattr(ModelRunner, "_fetch_tokens", fetch_tokens)
    monkeypatch.setattr(PixelStager, "_copy", copy)
    found, launches_before_reports = [], []
    with FakeStreams() as streams:
        monkeypatch.setattr(
            engines, "pixel_stager", lambda device, images: Stager(streams, images=images)
        )
        for row, answer in fresh(engine, 4).ask(stream(12), question):
            found.append((row, answer.answer))
            launches_before_reports.append(len(launches) - launches_at_ends[row])
    assert sorted(found) == expected
    first, *others = steps_at_copies
    assert first == 0
    assert len(others) > 5
    assert min(others) >= 1
    # some are reported before the engine takes more input, and the last at the end
    assert sum(map(bool, launches_before_reports)) > 20
