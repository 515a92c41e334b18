"""Published claims about the contrastive losses of CLIP and SigLIP."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from pgcli.training.contrastive import (
    SIGLIP_BIAS,
    SIGLIP_SCALE,
    sigmoid_contrastive,
    softmax_contrastive,
)

Loss = Callable[[Tensor], Tensor]
ROWS = 5
CLOSE = {"rtol": 1e-5, "atol": 0}


def softmax_loss(logit_NN: Tensor) -> Tensor:
    """CLIP's loss of any logits: as the products of their rows and unit vectors."""
    unit_NN = torch.eye(len(logit_NN))
    return softmax_contrastive(logit_NN, unit_NN, torch.ones(()))


def sigmoid_loss(logit_NN: Tensor) -> Tensor:
    """SigLIP's loss of any logits."""
    unit_NN = torch.eye(len(logit_NN))
    return sigmoid_contrastive(logit_NN, unit_NN, torch.ones(()), torch.zeros(()))


@pytest.fixture
def logit_NN() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(ROWS, ROWS, generator=generator)


def test_equal_logits_are_a_guess_among_all_texts() -> None:
    equal = torch.zeros(ROWS, ROWS)
    assert softmax_loss(equal).item() == pytest.approx(math.log(ROWS))
    assert sigmoid_loss(equal).item() == pytest.approx(ROWS * math.log(2))


@pytest.mark.parametrize("loss", [softmax_loss, sigmoid_loss])
def test_the_labels_are_the_diagonal(loss: Loss, logit_NN: Tensor) -> None:
    """The loss falls with a higher diagonal, and pairs in another order have a higher one."""
    diagonal = 4 * torch.eye(ROWS)
    assert loss(logit_NN + diagonal) < loss(logit_NN)
    assert loss(logit_NN + diagonal) < loss(logit_NN + diagonal.roll(1, 0))


@pytest.mark.parametrize("loss", [softmax_loss, sigmoid_loss])
def test_images_and_texts_are_treated_alike(loss: Loss, logit_NN: Tensor) -> None:
    torch.testing.assert_close(loss(logit_NN), loss(logit_NN.T.contiguous()), **CLOSE)


def test_softmax_ignores_a_constant_and_sigmoid_does_not(logit_NN: Tensor) -> None:
    torch.testing.assert_close(softmax_loss(logit_NN), softmax_loss(logit_NN + 7), **CLOSE)
    assert (sigmoid_loss(logit_NN) - sigmoid_loss(logit_NN + 7)).abs() > 1


def gradient(loss: Loss, logit_NN: Tensor) -> Tensor:
    logit_NN = logit_NN.clone().requires_grad_()
    return torch.autograd.grad(loss(logit_NN), logit_NN)[0]


def test_softmax_judges_a_value_by_its_row_and_column(logit_NN: Tensor) -> None:
    """So the gradients of a whole row and column depend on each value, and no others."""
    changed = logit_NN.clone()
    changed[1, 3] += 1
    differs = (gradient(softmax_loss, changed) - gradient(softmax_loss, logit_NN)).abs() > 1e-6
    expected = torch.zeros(ROWS, ROWS, dtype=torch.bool)
    expected[1, :] = expected[:, 3] = True
    assert torch.equal(differs, expected)


def test_sigmoid_judges_each_value_alone(logit_NN: Tensor) -> None:
    changed = logit_NN.clone()
    changed[1, 3] += 1
    differs = gradient(sigmoid_loss, changed) != gradient(sigmoid_loss, logit_NN)
    assert differs.nonzero().tolist() == [[1, 3]]


def test_the_sigmoid_loss_is_the_sum_of_its_blocks() -> None:
    """Devices that hold a part of the texts each need no values of the others."""
    generator = torch.Generator().manual_seed(1)
    image_ND, text_ND = torch.randn(2, 6, 4, generator=generator)
    scale, bias = torch.tensor(3.0), torch.tensor(-2.0)
    logit_NN = scale * image_ND @ text_ND.T + bias
    label_NN = 2 * torch.eye(6) - 1
    blocks = [
        -F.logsigmoid(label_NN[:, texts] * logit_NN[:, texts]).sum() / 6
        for texts in (slice(0, 2), slice(2, 6))
    ]
    whole = sigmoid_contrastive(image_ND, text_ND, scale, bias)
    torch.testing.assert_close(whole, sum(blocks), **CLOSE)


def test_labels_of_plus_and_minus_1_are_those_of_1_and_0(logit_NN: Tensor) -> None:
    """-log sigmoid(+-x) is the binary cross-entropy; the sum over texts is N times its mean."""
    unit_NN = torch.eye(ROWS)
    expected = F.binary_cross_entropy_with_logits(logit_NN, unit_NN) * ROWS
    torch.testing.assert_close(sigmoid_loss(logit_NN), expected, **CLOSE)


def test_the_initial_bias_calls_nearly_all_values_no_pair() -> None:
    """Without it the negatives, which are N - 1 of N values, would decide the first steps."""
    generator = torch.Generator().manual_seed(2)
    image_ND, text_ND = F.normalize(torch.randn(2, 64, 128, generator=generator), dim=-1)
    scale = torch.tensor(SIGLIP_SCALE)
    unbiased, biased = (
        sigmoid_contrastive(image_ND, text_ND, scale, torch.tensor(bias))
        for bias in (0.0, SIGLIP_BIAS)
    )
    assert unbiased > 40
    assert 9 < biased < 11  # the pairs alone: -log sigmoid(-10) each
