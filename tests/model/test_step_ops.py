"""Kernel launches of a decode step, counted on meta tensors by benchmarks/step_ops.py."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from benchmarks.step_ops import LaunchCounter, count_prefill, count_step, meta_model
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


def test_views_and_conversions_without_change_are_no_launches() -> None:
    x, query = torch.zeros(4, 6, device="meta"), torch.zeros(2, 3, 5, 8, device="meta")
    with LaunchCounter() as counter, torch.no_grad():
        x.view(6, 4).transpose(0, 1)[1:].to(torch.float32)
        assert not counter.launches
        x.add_(1)
        x.to(torch.bfloat16)
        assert F.scaled_dot_product_attention(query, query, query).shape == query.shape
        F.linear(x, x)
    assert counter.launches == {
        "aten::add_": 1,
        "aten::_to_copy": 1,
        "attention": 1,
        "aten::mm": 1,
    }
    assert counter.views.total() == 4  # view, transpose, slice, and the transposed weight
