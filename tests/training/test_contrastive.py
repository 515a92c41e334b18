"""The contrastive losses: whole, in chunks, and compared with transformers."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import CLIPConfig, CLIPModel, SiglipConfig, SiglipModel

from pgcli.training.contrastive import Meanings, sigmoid_contrastive, softmax_contrastive

ROWS, WIDTH = 12, 8
LOSSES = ["softmax", "sigmoid"]


def batch(rows: int = ROWS, *, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    """Normalized images and texts, scale and bias, all with gradients."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(2, rows, WIDTH, generator=generator, dtype=dtype)
    image_ND, text_ND = F.normalize(features, dim=-1)
    tensors = image_ND, text_ND, torch.tensor(7.0, dtype=dtype), torch.tensor(-3.0, dtype=dtype)
    return tuple(tensor.clone().requires_grad_() for tensor in tensors)


def loss_of(kind: str, tensors: tuple[Tensor, ...], **options: Any) -> Tensor:
    if kind == "softmax":
        return softmax_contrastive(*tensors[:3], **options)
    return sigmoid_contrastive(*tensors, **options)


def with_gradients(kind: str, tensors: tuple[Tensor, ...], **options: Any) -> list[Tensor]:
    """The loss and the gradients of the tensors that it depends on."""
    loss = loss_of(kind, tensors, **options)
    used = tensors[: 3 if kind == "softmax" else 4]
    return [loss.detach(), *torch.autograd.grad(loss, used)]


@pytest.mark.parametrize("chunk_rows", [1, 5, 12, 100])
@pytest.mark.parametrize("kind", LOSSES)
def test_chunks_change_neither_loss_nor_gradients(kind, chunk_rows):
    whole = with_gradients(kind, batch())
    for expected, found in zip(
        whole, with_gradients(kind, batch(), chunk_rows=chunk_rows), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


def test_losses_equal_transformers():
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 2}
    text = sizes | {"vocab_size": 50, "max_position_embeddings": 6}
    vision = sizes | {"image_size": 8, "patch_size": 4}
    inputs = {
        "input_ids": torch.randint(3, 50, (5, 6)),
        "pixel_values": torch.randn(5, 3, 8, 8),
        "return_loss": True,
    }
    torch.manual_seed(0)
    with torch.no_grad():
        clip = CLIPModel(CLIPConfig(text_config=text, vision_config=vision)).eval()
        out = clip(**inputs)
        loss = softmax_contrastive(out.image_embeds, out.text_embeds, clip.logit_scale.exp())
        torch.testing.assert_close(loss, out.loss)
        siglip = SiglipModel(SiglipConfig(text_config=text, vision_config=vision)).eval()
        out = siglip(**inputs)
        scale, bias = siglip.logit_scale.exp(), siglip.logit_bias
        loss = sigmoid_contrastive(out.image_embeds, out.text_embeds, scale, bias)
        torch.testing.assert_close(loss, out.loss)


# --- texts that are true of other images of the batch


def meanings() -> Meanings:
    """Rows 1 and 4 have equal texts; text 2 is true of image 7 as well."""
    text_N = torch.arange(ROWS)
    text_N[4] = 1
    image_NS = torch.stack([text_N, torch.full((ROWS,), -1)], dim=1)
    image_NS[7, 1] = 2
    return Meanings(text_N, image_NS)


LEFT_OUT = ((1, 4), (4, 1), (7, 2))  # images and texts that are no negatives


@pytest.mark.parametrize("kind", LOSSES)
def test_captions_of_equal_meaning_are_not_negatives(kind):
    """The loss is that of the other logits alone."""
    image_ND, text_ND, scale, bias = batch(dtype=torch.float32)
    logits = scale * image_ND @ text_ND.T
    is_left_out = torch.zeros(ROWS, ROWS, dtype=torch.bool)
    for image, text in LEFT_OUT:
        is_left_out[image, text] = True
    if kind == "softmax":
        logits, pairs = logits.masked_fill(is_left_out, -torch.inf), torch.arange(ROWS)
        expected = (F.cross_entropy(logits, pairs) + F.cross_entropy(logits.T, pairs)) / 2
    else:
        signs = 2 * torch.eye(ROWS) - 1
        losses = -F.logsigmoid(signs * (logits + bias))
        expected = losses[~is_left_out].sum() / ROWS
    tensors = image_ND, text_ND, scale, bias
    for chunk_rows in (None, 5):
        found = loss_of(kind, tensors, meanings=meanings(), chunk_rows=chunk_rows)
        torch.testing.assert_close(found, expected)
    without = loss_of(kind, tensors)
    assert abs(without.item() - expected.item()) > 1e-3
