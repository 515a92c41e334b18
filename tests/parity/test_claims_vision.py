"""Published claims about SigLIP: patches, attention, blocks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pgcli.checkpoints import weights
from pgcli.checkpoints.config import read_config
from pgcli.model.config import VisionConfig
from pgcli.model.siglip import (
    SiglipAttention,
    SiglipEmbeddings,
    SiglipEncoderLayer,
    SiglipMLP,
    SiglipVisionModel,
)
from tests.support.random_weights import normal, randomised

CONFIG = VisionConfig(width=24, depth=2, mlp_dim=40, num_heads=4, patch_size=4, resolution=12)
SIDE = CONFIG.resolution // CONFIG.patch_size
EXACT = {"rtol": 0, "atol": 1e-12}


@pytest.fixture
def attention() -> SiglipAttention:
    return randomised(SiglipAttention(CONFIG))


def images(rows: int, *, seed: int = 5) -> Tensor:
    return normal(rows, 3, CONFIG.resolution, CONFIG.resolution, seed=seed)


def only_heads(attention: SiglipAttention) -> SiglipAttention:
    """Attention with an identity output projection, so that it returns the heads."""
    attention.out_proj.weight.copy_(torch.eye(CONFIG.width))
    attention.out_proj.bias.zero_()
    return attention


# Patches


def test_patch_embedding_equals_conv2d(normal_embeddings: SiglipEmbeddings) -> None:
    pixels = images(2)
    convolution = normal_embeddings.patch_embedding
    expected = F.conv2d(pixels, convolution.weight, convolution.bias, stride=CONFIG.patch_size)
    positions = normal_embeddings.position_embedding.weight
    found = normal_embeddings(pixels)
    torch.testing.assert_close(found, expected.flatten(2).transpose(1, 2) + positions, **EXACT)


def test_patches_are_multiplied_row_by_row(
    normal_embeddings: SiglipEmbeddings,
) -> None:
    pixels, size = images(2), CONFIG.patch_size
    found = normal_embeddings(pixels) - normal_embeddings.position_embedding.weight
    matrix = normal_embeddings.patch_embedding.weight.reshape(CONFIG.width, -1)
    for patch in range(SIDE * SIDE):
        top, left = patch // SIDE * size, patch % SIDE * size
        square = pixels[:, :, top : top + size, left : left + size].reshape(2, -1)
        expected = square @ matrix.T + normal_embeddings.patch_embedding.bias
        torch.testing.assert_close(found[:, patch], expected, **EXACT)


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


def test_heads_computed_together_are_a_loop_over_heads(attention: SiglipAttention) -> None:
    x, size = normal(2, 9, CONFIG.width), CONFIG.head_dim
    weight_q, weight_k, weight_v = attention.qkv_proj.weight.chunk(3)
    bias_q, bias_k, bias_v = attention.qkv_proj.bias.chunk(3)
    heads = []
    for head in range(CONFIG.num_heads):
        part = slice(head * size, (head + 1) * size)
        query = x @ weight_q[part].T + bias_q[part]
        key = x @ weight_k[part].T + bias_k[part]
        value = x @ weight_v[part].T + bias_v[part]
        scores = query @ key.transpose(1, 2) / size**0.5
        heads.append(scores.softmax(-1) @ value)
    expected = attention.out_proj(torch.cat(heads, dim=-1))
    torch.testing.assert_close(attention(x), expected, **EXACT)


def test_one_fused_product_is_three_linears(attention: SiglipAttention) -> None:
    x = normal(2, 9, CONFIG.width)
    three = [nn.Linear(CONFIG.width, CONFIG.width, dtype=x.dtype) for _ in "qkv"]
    for number, linear in enumerate(three):
        rows = slice(number * CONFIG.width, (number + 1) * CONFIG.width)
        linear.weight.data = attention.qkv_proj.weight[rows]
        linear.bias.data = attention.qkv_proj.bias[rows]
    apart = [linear(x).unflatten(-1, (CONFIG.num_heads, -1)).transpose(1, 2) for linear in three]
    heads = F.scaled_dot_product_attention(*apart).transpose(1, 2).flatten(2)
    torch.testing.assert_close(attention(x), attention.out_proj(heads), **EXACT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(("rows", "patches"), [(1, 1), (1, 9), (5, 3)])
def test_input_and_output_have_the_same_shape(rows: int, patches: int, dtype: torch.dtype) -> None:
    x = normal(rows, patches, CONFIG.width, dtype=dtype)
    for block in (SiglipAttention(CONFIG), SiglipMLP(CONFIG), SiglipEncoderLayer(CONFIG)):
        out = randomised(block, dtype=dtype)(x)
        assert (out.shape, out.dtype) == (x.shape, x.dtype)


def test_attention_is_a_weighted_mean_of_the_values(attention: SiglipAttention) -> None:
    """Outputs are within the range of the values, and equal to them if all values are equal."""
    x = 3 * normal(2, 9, CONFIG.width)
    mixed = only_heads(attention)(x)
    value = attention.qkv_proj(x).chunk(3, dim=-1)[2]
    assert (mixed <= value.amax(1, keepdim=True) + 1e-12).all()
    assert (mixed >= value.amin(1, keepdim=True) - 1e-12).all()
    attention.qkv_proj.weight[2 * CONFIG.width :] = 0
    constant = attention.qkv_proj.bias[2 * CONFIG.width :].expand_as(x)
    torch.testing.assert_close(attention(x), constant, **EXACT)


@pytest.mark.parametrize("head", range(CONFIG.num_heads))
@pytest.mark.parametrize("part", [0, 1, 2])
def test_heads_are_independent_before_the_output_projection(
    attention: SiglipAttention, head: int, part: int
) -> None:
    x, size = normal(1, 9, CONFIG.width), CONFIG.head_dim
    before = only_heads(attention)(x)
    first = part * CONFIG.width + head * size
    attention.qkv_proj.weight[first : first + size] *= -1
    changed = (attention(x) != before).any(1)[0].unflatten(-1, (CONFIG.num_heads, size))
    assert changed.any(-1).nonzero().flatten().tolist() == [head]


def test_every_patch_attends_to_every_patch() -> None:
    tower = randomised(SiglipVisionModel(CONFIG))
    pixels = images(1)
    before = tower(pixels)
    pixels[..., -1, -1] += 1  # the last patch
    assert (tower(pixels) != before).any(-1).all()


# Blocks


def test_layer_norm_gives_mean_0_and_deviation_1() -> None:
    norm = SiglipEncoderLayer(
        VisionConfig(2, 1, 1, 1, patch_size=1, resolution=1)
    ).layer_norm1.double()
    x = torch.tensor([[0.0, 4.0], [-1.0, 7.0], [3.0, 5.0]], dtype=torch.float64)
    assert x.mean(-1).tolist() == [2, 3, 4]
    assert x.std(-1, correction=0).tolist() == [2, 4, 1]
    torch.testing.assert_close(norm(x), torch.tensor([[-1.0, 1.0]] * 3).double(), rtol=0, atol=1e-6)
    with torch.no_grad():
        norm.bias += 1
        norm.weight *= 4
    torch.testing.assert_close(norm(x), torch.tensor([[-3.0, 5.0]] * 3).double(), rtol=0, atol=1e-5)


def test_layer_norm_of_a_row_is_bitwise_equal_in_any_batch() -> None:
    norm = randomised(SiglipEncoderLayer(CONFIG), dtype=torch.float32).layer_norm1
    x = 100 * normal(7, 9, CONFIG.width, dtype=torch.float32)
    together = norm(x)
    for row in range(7):
        assert torch.equal(norm(x[row : row + 1]), together[row : row + 1])
        assert torch.equal(norm(x[row, 3]), together[row, 3])


def test_the_last_norm_gives_patches_of_mean_0_and_variance_1() -> None:
    tower = randomised(SiglipVisionModel(CONFIG))
    tower.post_layernorm.reset_parameters()
    found = tower(images(2))
    torch.testing.assert_close(found.mean(-1), torch.zeros(2, 9).double(), rtol=0, atol=1e-9)
    variance = found.var(-1, correction=0)
    torch.testing.assert_close(variance, torch.ones(2, 9).double(), rtol=0, atol=1e-4)


def test_a_block_whose_last_products_are_zero_is_the_identity() -> None:
    layer, x = randomised(SiglipEncoderLayer(CONFIG)), normal(2, 9, CONFIG.width)
    for last in (layer.self_attn.out_proj, layer.mlp.fc2):
        assert not torch.equal(layer(x), x)
        last.weight.zero_()
        last.bias.zero_()
    assert torch.equal(layer(x), x)


def test_the_mlp_treats_every_patch_alone() -> None:
    mlp, x = randomised(SiglipMLP(CONFIG)), normal(2, 9, CONFIG.width)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(mlp(x[:, order]), mlp(x)[:, order], **EXACT)
    flat = mlp(x.reshape(-1, CONFIG.width)).view_as(x)
    torch.testing.assert_close(mlp(x), flat, **EXACT)


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
