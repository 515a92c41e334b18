"""The time that --dry-run estimates, from the times of a few rows."""

import pytest

from pgcli.pipeline import plan
from pgcli.pipeline.plan import row_seconds
from pgcli.records import Answer
from tests.support.answers import answer


def rows(*, load_ms: float, vision_ms: float, prompts: int = 1) -> list[Answer]:
    """Four rows; the first two have the slow first pass of a model."""
    times = {"load_ms": load_ms, "prefill_ms": 2.0, "decode_ms": 3.0}
    stages = [50 * vision_ms, 50 * vision_ms, vision_ms, vision_ms]
    return [
        answer(number // prompts, vision_ms=vision, **times) for number, vision in enumerate(stages)
    ]


@pytest.mark.parametrize(
    ("device", "cores", "engines", "ms"),
    [
        ("cpu", 1, 1, 5 + 2 + 3 + 40),  # computing and decoding share the cores
        ("cpu", 4, 1, 5 + 2 + 3 + 40 / 4),
        ("cpu", 4, 4, 5 + 2 + 3 + 40 / 4),  # each engine has one core
        ("cuda:0", 8, 1, 5 + 2 + 3),  # the GPU is slower than 8 cores
        ("cuda:0", 2, 1, 40 / 2),  # the cores are slower than the GPU
        ("cuda:0", 8, 2, (5 + 2 + 3) / 2),
    ],
)
def test_time_of_a_row_has_computing_and_decoding(monkeypatch, device, cores, engines, ms):
    monkeypatch.setattr(plan, "processors", lambda: cores)
    sample = rows(load_ms=40.0, vision_ms=5.0)
    assert row_seconds(sample, device, engines=engines) == pytest.approx(ms / 1000)


def test_an_image_is_decoded_once_for_all_of_its_prompts(monkeypatch):
    monkeypatch.setattr(plan, "processors", lambda: 1)
    sample = rows(load_ms=40.0, vision_ms=5.0, prompts=2)
    assert row_seconds(sample, "cpu", engines=1) == pytest.approx((5 + 2 + 3 + 40 / 2) / 1000)


def test_rows_without_times_take_some_time():
    sample = [answer(0, load_ms=None, vision_ms=None, prefill_ms=None, decode_ms=None)]
    assert row_seconds(sample, "cpu", engines=1) > 0
