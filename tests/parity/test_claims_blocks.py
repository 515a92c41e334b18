"""Published claims about the blocks of a Vision Transformer: norms, dropout, heads, class token."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pgcli.model.classifier import ImageClassifier
from pgcli.model.config import ClassifierConfig, VisionConfig
from pgcli.model.siglip import SiglipAttention, SiglipEncoderLayer, SiglipMLP, SiglipVisionModel
from tests.support.random_weights import normal, randomised

VIT = VisionConfig(
    width=24,
    depth=2,
    mlp_dim=40,
    num_heads=4,
    patch_size=4,
    resolution=12,
    class_token=True,
    activation="gelu",
)
EXACT = {"rtol": 0, "atol": 1e-12}


def classifier(vision: VisionConfig = VIT) -> ImageClassifier:
    return randomised(ImageClassifier(ClassifierConfig("vit", vision, ("a", "b", "c"))))


def test_layer_norm_of_the_published_vectors() -> None:
    x_BD = torch.tensor([[0.0, 4.0], [-1.0, 7.0], [3.0, 5.0]])
    assert x_BD.mean(-1).tolist() == [2, 3, 4]
    assert x_BD.std(-1, correction=0).tolist() == [2, 4, 1]
    norm = nn.LayerNorm(2, eps=1e-6)
    torch.testing.assert_close(norm(x_BD), torch.tensor([[-1.0, 1.0]] * 3))
    with torch.no_grad():
        norm.bias += 1
        norm.weight *= 4
        y_BD = norm(x_BD)
    torch.testing.assert_close(y_BD.mean(-1), torch.ones(3))
    torch.testing.assert_close(y_BD.std(-1, correction=0), torch.full((3,), 4.0))


def test_a_vectors_layer_norm_does_not_depend_on_its_batch() -> None:
    norm, x_BD = nn.LayerNorm(24, eps=1e-6), torch.randn(9, 24)
    assert torch.equal(norm(x_BD)[:1], norm(x_BD[:1]))
    assert torch.equal(norm(x_BD)[4], norm(x_BD[3:5])[1])


def test_the_model_has_no_norm_that_sees_the_batch() -> None:
    norms = [type(one) for one in classifier().modules() if "Norm" in type(one).__name__]
    assert set(norms) == {nn.LayerNorm}


def test_the_last_norm_gives_each_patch_mean_0_and_variance_1() -> None:
    tower = randomised(SiglipVisionModel(replace(VIT, class_token=False)))
    nn.init.ones_(tower.post_layernorm.weight)
    nn.init.zeros_(tower.post_layernorm.bias)
    features_BPD = tower(normal(2, 3, 12, 12))
    zeros = torch.zeros_like(features_BPD[..., 0])
    torch.testing.assert_close(features_BPD.mean(-1), zeros, rtol=0, atol=1e-6)
    torch.testing.assert_close(features_BPD.var(-1, correction=0), zeros + 1, rtol=0, atol=1e-3)


def test_dropout_is_for_training_only_and_keeps_the_mean() -> None:
    model, pixels = classifier(replace(VIT, dropout=0.5)), normal(1, 3, 12, 12)
    model.eval()
    assert torch.equal(model(pixels), model(pixels))
    assert torch.equal(model(pixels), classifier()(pixels))
    model.train()
    assert not torch.equal(model(pixels), model(pixels))
    kept = F.dropout(torch.ones(100_000), 0.5, training=True)
    assert set(kept.tolist()) == {0.0, 2.0}
    assert kept.mean().item() == pytest.approx(1, abs=0.02)


def test_attention_dropout_drops_weights_in_training_and_keeps_their_mean() -> None:
    plain = randomised(SiglipAttention(VIT))
    attention = randomised(SiglipAttention(replace(VIT, attention_dropout=0.5)))
    x_BPD = normal(1, 9, 24)
    assert torch.equal(attention.eval()(x_BPD), plain(x_BPD))
    attention.train()
    outputs = attention(x_BPD.expand(20_000, -1, -1))
    assert not torch.equal(outputs[0], outputs[1])
    deviation = outputs.std(0) / len(outputs) ** 0.5
    assert ((outputs.mean(0) - plain(x_BPD)[0]).abs() < 5 * deviation + 1e-9).all()


def test_the_root_of_the_head_size_keeps_the_variance_of_scores() -> None:
    generator = torch.Generator().manual_seed(0)
    for size in (16, 64, 256):
        query, key = torch.randn(2, 4000, size, generator=generator)
        products = (query * key).sum(-1)
        assert products.var().item() == pytest.approx(size, rel=0.1)
        assert (products / size**0.5).var().item() == pytest.approx(1, rel=0.1)


def test_the_class_token_is_one_more_position_and_comes_first() -> None:
    assert replace(VIT, resolution=384, patch_size=16).num_positions == 577
    model = classifier()
    x_BPD = model.vision(normal(2, 3, 12, 12))
    assert x_BPD.shape == (2, 1 + 9, 24)
    embeddings = model.vision.embeddings
    first = embeddings.class_embedding + embeddings.position_embedding.weight[0]
    torch.testing.assert_close(embeddings(normal(2, 3, 12, 12))[:, 0], first.expand(2, -1), **EXACT)


def test_logits_depend_on_the_class_token_alone() -> None:
    model, pixels = classifier(), normal(1, 3, 12, 12)
    expected = model(pixels)
    hook = model.vision.register_forward_hook(lambda *given: disturbed(given[2], start=1))
    torch.testing.assert_close(model(pixels), expected, **EXACT)
    hook.remove()
    model.vision.register_forward_hook(lambda *given: disturbed(given[2], start=0))
    assert (model(pixels) - expected).abs().max() > 0.1


def disturbed(x_BPD: Tensor, *, start: int) -> Tensor:
    """The features with other values from a position on."""
    return torch.cat([x_BPD[:, :start], x_BPD[:, start:] + normal(*x_BPD[:, start:].shape)], dim=1)


def test_vit_base_has_the_published_number_of_weights() -> None:
    vision = VisionConfig(768, 12, 3072, 12, 16, 384, class_token=True, activation="gelu")
    with torch.device("meta"):
        model = ImageClassifier(ClassifierConfig("vit", vision, tuple(map(str, range(1000)))))
    assert sum(weight.numel() for weight in model.parameters()) == 86_859_496


def test_a_block_without_output_is_the_identity() -> None:
    """Both parts are added to their input."""
    block, x_BPD = randomised(SiglipEncoderLayer(VIT)), normal(2, 9, 24)
    assert not torch.equal(block(x_BPD), x_BPD)
    for linear in (block.self_attn.out_proj, block.mlp.fc2):
        nn.init.zeros_(linear.weight)
        nn.init.zeros_(linear.bias)
    assert torch.equal(block(x_BPD), x_BPD)


def test_the_mlp_computes_each_patch_alone() -> None:
    mlp, x_BPD = randomised(SiglipMLP(VIT)), normal(1, 9, 24)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(mlp(x_BPD)[:, order], mlp(x_BPD[:, order]), **EXACT)
    torch.testing.assert_close(mlp(x_BPD)[0], mlp(x_BPD[0]), **EXACT)


def test_attention_is_a_weighted_mean_of_values() -> None:
    """Its outputs are in the range of the values, and equal values give that value."""
    query, key, value = (normal(2, 3, 9, 8, seed=seed) for seed in (1, 2, 3))
    out = F.scaled_dot_product_attention(query, key, value)
    low, high = value.amin(2, keepdim=True), value.amax(2, keepdim=True)
    assert ((out >= low - 1e-9) & (out <= high + 1e-9)).all()
    equal = value[:, :, :1].expand(-1, -1, 9, -1)
    torch.testing.assert_close(F.scaled_dot_product_attention(query, key, equal), equal, **EXACT)


@pytest.mark.parametrize("head", [0, 2])
def test_heads_are_independent_until_they_are_joined(head: int) -> None:
    """Other weights of a head change its slice of what `out_proj` is given, and no other."""
    attention, x_BPD = randomised(SiglipAttention(VIT)), normal(2, 9, 24)
    joined: list[Tensor] = []
    attention.out_proj.register_forward_pre_hook(lambda _, given: joined.append(given[0]))
    attention(x_BPD)
    size = VIT.head_dim
    with torch.no_grad():
        for part in range(3):  # its queries, keys and values
            first = part * VIT.width + head * size
            attention.qkv_proj.weight[first : first + size] *= -1.5
    attention(x_BPD)
    changed = (joined[0] != joined[1]).unflatten(-1, (VIT.num_heads, size)).any(-1)
    expected = torch.zeros(VIT.num_heads, dtype=torch.bool)
    expected[head] = True
    assert torch.equal(changed, expected.expand_as(changed))
