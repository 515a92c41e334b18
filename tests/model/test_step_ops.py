"""Kernel launches of a decode step, counted on meta tensors by benchmarks/step_ops.py."""

from __future__ import annotations

import pytest

from benchmarks.step_ops import count_prefill, count_step, meta_model
from pgcli.engine.sampler import GREEDY, SamplingParams

MOST_LAUNCHES = 260


@pytest.mark.parametrize("generation", [1, 2])
@pytest.mark.parametrize(
    ("sampling", "more"),
    [(GREEDY, 0), (SamplingParams(temperature=1, top_p=0.9), 40)],
    ids=["greedy", "sampled"],
)
def test_a_step_of_a_3b_model_has_few_launches(
    generation: int, sampling: SamplingParams, more: int
) -> None:
    counter = count_step(meta_model(generation), 64, sampling)
    assert 0 < counter.launches.total() <= MOST_LAUNCHES + more, counter.launches


def test_a_prefill_of_the_first_generation_has_few_launches() -> None:
    counter = count_prefill(meta_model(1), rows=64)
    assert 0 < counter.launches.total() <= 210, counter.launches
    assert counter.launches["pgcli::rotate"] == 17  # the last layer has one query a row
