"""Published claims about SigLIP: patches, attention, blocks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from pgcli.checkpoints import weights
from pgcli.checkpoints.config import read_config
from pgcli.model.config import VisionConfig
from pgcli.model.siglip import (
    SiglipEmbeddings,
    SiglipMLP,
    SiglipVisionModel,
)
from tests.support.random_weights import normal, randomised

CONFIG = VisionConfig(width=24, depth=2, mlp_dim=40, num_heads=4, patch_size=4, resolution=12)
SIDE = CONFIG.resolution // CONFIG.patch_size
EXACT = {"rtol": 0, "atol": 1e-12}


def images(rows: int, *, seed: int = 5) -> Tensor:
    return normal(rows, 3, CONFIG.resolution, CONFIG.resolution, seed=seed)


# Patches


def test_patch_embedding_equals_conv2d(normal_embeddings: SiglipEmbeddings) -> None:
    pixels = images(2)
    convolution = normal_embeddings.patch_embedding
    expected = F.conv2d(pixels, convolution.weight, convolution.bias, stride=CONFIG.patch_size)
    positions = normal_embeddings.position_embedding.weight
    found = normal_embeddings(pixels)
    torch.testing.assert_close(found, expected.flatten(2).transpose(1, 2) + positions, **EXACT)


@pytest.mark.parametrize(("y", "x", "patch"), [(0, 0, 0), (3, 4, 1), (4, 3, 3), (11, 11, 8)])
def test_one_pixel_changes_one_patch(
    normal_embeddings: SiglipEmbeddings, y: int, x: int, patch: int
) -> None:
    pixels = images(1)
    before = normal_embeddings(pixels)
    pixels[0, 1, y, x] += 1
    changed = (normal_embeddings(pixels) != before).any(-1)[0]
    assert changed.nonzero().flatten().tolist() == [patch]


@pytest.mark.parametrize(
    ("resolution", "patches"), [(224, 256), (448, 1024), (896, 4096), (112, 64)]
)
def test_patch_count_follows_from_the_resolution(resolution: int, patches: int) -> None:
    config = VisionConfig(
        width=1152, depth=1, mlp_dim=8, num_heads=16, patch_size=14, resolution=resolution
    )
    assert config.num_patches == patches
    with torch.device("meta"):
        assert SiglipEmbeddings(config).position_embedding.weight.shape == (patches, 1152)
        assert SiglipVisionModel(config)(torch.empty(2, 3, resolution, resolution)).shape == (
            2,
            patches,
            1152,
        )


@pytest.fixture
def normal_embeddings() -> SiglipEmbeddings:
    return randomised(SiglipEmbeddings(CONFIG))


# Attention


def test_attention_of_every_layer_equals_transformers(tiny: Path) -> None:
    """With all eight tensors of every layer, weights and biases."""
    from transformers import PaliGemmaForConditionalGeneration

    vision = weights.load(tiny, read_config(tiny), dtype=torch.float32).vision
    hf_model = PaliGemmaForConditionalGeneration.from_pretrained(tiny, attn_implementation="eager")
    layers = hf_model.model.vision_tower.encoder.layers
    assert len(layers) == len(vision.layers) == 2
    for mine, other in zip(vision.layers, layers, strict=True):
        for rows, patches in [(1, 1), (1, 16), (3, 7)]:
            x = normal(rows, patches, 32, dtype=torch.float32)
            with torch.no_grad():
                expected = other.self_attn(x)[0]
            scale = expected.abs().max()
            assert (mine.self_attn(x) - expected).abs().max() <= 1e-6 * scale


def test_every_patch_attends_to_every_patch() -> None:
    tower = randomised(SiglipVisionModel(CONFIG))
    pixels = images(1)
    before = tower(pixels)
    pixels[..., -1, -1] += 1  # the last patch
    assert (tower(pixels) != before).any(-1).all()


# Blocks


def test_the_mlp_uses_the_tanh_gelu() -> None:
    """Not the exact GELU, which differs by up to 4.7e-4."""
    mlp = (
        SiglipMLP(VisionConfig(1, 1, 1, 1, patch_size=1, resolution=1))
        .double()
        .requires_grad_(False)
    )
    for linear in (mlp.fc1, mlp.fc2):
        linear.weight.fill_(1)
        linear.bias.zero_()
    x = torch.linspace(-4, 4, 801, dtype=torch.float64)[:, None]
    tanh = 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))
    torch.testing.assert_close(mlp(x), tanh, **EXACT)
    assert 4e-4 < (mlp(x) - F.gelu(x)).abs().max() < 5e-4


# The tower


def test_without_positions_shuffled_patches_give_shuffled_outputs() -> None:
    tower, pixels = randomised(SiglipVisionModel(CONFIG)), images(2)
    order = torch.randperm(SIDE * SIDE, generator=torch.Generator().manual_seed(4))
    shuffled = rearranged(pixels, order)
    apart = (tower(shuffled) - tower(pixels)[:, order]).abs().amax(-1)
    assert (apart > 1e-3).all()
    tower.embeddings.position_embedding.weight.zero_()
    torch.testing.assert_close(tower(shuffled), tower(pixels)[:, order], **EXACT)


def rearranged(pixels: Tensor, order: Tensor) -> Tensor:
    """The images with their patches permuted: patch `order[n]` moves to position n."""
    size = CONFIG.patch_size
    squares = F.unfold(pixels, size, stride=size)[:, :, order]
    return F.fold(squares, pixels.shape[-2:], size, stride=size)


def test_image_features_do_not_depend_on_the_batch() -> None:
    tower, pixels = randomised(SiglipVisionModel(CONFIG)), images(5)
    together = tower(pixels)
    for row in range(5):
        torch.testing.assert_close(tower(pixels[row : row + 1])[0], together[row], **EXACT)
    assert torch.equal(tower(pixels), together), "the same twice: nothing is dropped at random"


def test_the_vision_tower_has_no_buffers() -> None:
    """Positions are computed, not stored: no buffer can be missing or on another device."""
    tower = SiglipVisionModel(CONFIG)
    assert list(tower.buffers()) == []
    assert set(tower.state_dict()) == {name for name, _ in tower.named_parameters()}
