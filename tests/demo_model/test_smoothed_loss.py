"""The loss of the built-in model: smoothed location tokens, plain cross-entropy for others."""

from __future__ import annotations

import pytest
import torch

from examples.demo_model.smoothed_loss import smoothed_loss


def test_near_location_has_a_lower_loss_than_a_far_one() -> None:
    locations = range(100, 1124)
    logits = torch.zeros(3, 1200)
    logits[0, 500], logits[1, 501], logits[2, 700] = 9.0, 9.0, 9.0
    target, weight = torch.tensor([500]), torch.ones(1)
    exact, near, far = (smoothed_loss(row[None], target, weight, locations) for row in logits)
    assert exact < near < far


def test_other_tokens_have_plain_cross_entropy() -> None:
    logits, target = torch.randn(5, 1200), torch.tensor([3, 50, 99, 1150, 0])
    loss = smoothed_loss(logits, target, torch.ones(5), range(100, 1124))
    assert loss.item() == pytest.approx(
        torch.nn.functional.cross_entropy(logits, target).item(), rel=1e-5
    )


def test_the_loss_is_the_weighted_mean() -> None:
    logits, target = torch.randn(2, 50), torch.tensor([3, 40])
    locations = range(45, 50)
    first, second = (
        smoothed_loss(logits[n : n + 1], target[n : n + 1], torch.ones(1), locations)
        for n in range(2)
    )
    both = smoothed_loss(logits, target, torch.tensor([3.0, 1.0]), locations)
    assert both.item() == pytest.approx((3 * first + second).item() / 4, rel=1e-5)
