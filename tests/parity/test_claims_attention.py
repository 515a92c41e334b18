"""Published claims about Gemma: norms, rotary embedding, grouped heads, embeddings."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from pgcli.checkpoints.config import parse_config
from pgcli.engine.memory import parameters
from pgcli.model.attention import grouped_attention
from pgcli.model.config import DecoderConfig
from pgcli.model.gemma import (
    Gemma,
    GemmaAttention,
    GemmaMLP,
    RMSNorm,
    RotaryEmbedding,
)
from pgcli.model.paligemma import PaliGemma
from tests.support.published import paligemma_3b
from tests.support.random_weights import normal, randomised

CONFIG = DecoderConfig(
    width=24, depth=2, mlp_dim=40, num_heads=6, num_kv_heads=2, head_dim=8, vocab_size=50
)
EXACT = {"rtol": 0, "atol": 1e-12}


def rotation(
    position_BL: Tensor, dtype: torch.dtype = torch.float64, size: int = 8
) -> RotaryEmbedding:
    return RotaryEmbedding.of(position_BL, DecoderConfig(1, 1, 1, 1, 1, size, 1), dtype)


def whole(attention: GemmaAttention, x: Tensor, mask: Tensor | None = None) -> Tensor:
    """The attention of a prefix on its own, without a cache."""
    position_BL = torch.arange(1, x.shape[1] + 1).expand(x.shape[:2])
    return attention(x, rotation(position_BL, x.dtype), mask, None)


# Attention weights


def test_masking_keys_equals_removing_them() -> None:
    query, key, value = normal(1, 3, 6, 8), normal(1, 2, 9, 8, seed=2), normal(1, 2, 9, 8, seed=3)
    seen = torch.tensor([1, 3, 4, 8])
    mask = torch.zeros(1, 1, 1, 9, dtype=torch.bool)
    mask[..., seen] = True
    without = grouped_attention(query, key[:, :, seen], value[:, :, seen], None)
    torch.testing.assert_close(grouped_attention(query, key, value, mask), without, **EXACT)


@pytest.mark.parametrize("masked", [False, True])
def test_scores_in_bfloat16_are_summed_and_weighed_in_float32(masked: bool) -> None:
    """Above 64, bfloat16 scores have a spacing of 0.5, which would change weights by a quarter."""
    query, key = normal(1, 4, 2, 64).bfloat16(), normal(1, 1, 96, 64, seed=2).bfloat16()
    query[..., 0], key[..., 0] = 64, 8
    value = normal(1, 1, 96, 64, seed=3).bfloat16()
    mask = torch.ones(1, 1, 1, 96, dtype=torch.bool) if masked else None
    found = grouped_attention(query, key, value, mask).double()
    true = grouped_attention(query.double(), key.double(), value.double(), mask)
    error = (found - true).abs().max()
    assert error < 2**-7 * value.abs().max()

    rounded = (query.transpose(1, 2) @ key.transpose(-1, -2)) / 8
    careless = (rounded.softmax(-1) @ value).transpose(1, 2).flatten(2)
    assert error < (careless - true).abs().max() / 5


# Shared heads


def test_consecutive_query_heads_share_a_key_head() -> None:
    """Of six heads over two, the first three read the first: repeat_interleave, no tiling."""
    query, key, value = normal(2, 5, 6, 8), normal(2, 2, 7, 8, seed=2), normal(2, 2, 7, 8, seed=3)
    found = grouped_attention(query, key, value, None)

    def copied(how: str) -> Tensor:
        keys, values = (
            x.repeat_interleave(3, dim=1) if how == "runs" else x.repeat(1, 3, 1, 1)
            for x in (key, value)
        )
        out = F.scaled_dot_product_attention(query.transpose(1, 2), keys, values)
        return out.transpose(1, 2).flatten(2)

    torch.testing.assert_close(found, copied("runs"), **EXACT)
    assert (found - copied("turns")).abs().max() > 0.1


@pytest.mark.parametrize("kv_heads", [1, 2, 3, 6])
@pytest.mark.parametrize("causal", [False, True])
def test_the_decoders_attention_is_a_loop_over_heads(kv_heads: int, causal: bool) -> None:
    config = DecoderConfig(24, 1, 1, 6, kv_heads, 8, 1)
    attention, x, size = randomised(GemmaAttention(config)), normal(2, 5, 24), 8
    mask = torch.ones(5, 5, dtype=torch.bool)
    mask = mask.tril() if causal else mask
    queries, keys, values = (
        (x @ rows.T).unflatten(-1, (-1, size))
        for rows in attention.qkv_proj.weight.split([6 * size, kv_heads * size, kv_heads * size])
    )
    turn = rotation(torch.arange(1, 6).expand(2, 5))
    queries, keys = turn(queries), turn(keys)
    heads = []
    for head in range(6):
        shared = head // (6 // kv_heads)
        scores = queries[:, :, head] @ keys[:, :, shared].transpose(1, 2) / size**0.5
        heads.append(scores.masked_fill(~mask, -torch.inf).softmax(-1) @ values[:, :, shared])
    expected = attention.o_proj(torch.cat(heads, dim=-1))
    seen = mask.expand(2, 1, 5, 5) if causal else None
    torch.testing.assert_close(whole(attention, x, seen), expected, **EXACT)


# Rotation


@pytest.mark.parametrize("shift", [1, 777])
def test_scores_depend_on_the_distance_alone(shift: int) -> None:
    query, key = normal(1, 6, 2, 8), normal(1, 6, 2, 8, seed=2)
    position = torch.tensor([[1, 2, 5, 9, 10, 40]])

    def scores(query_position: Tensor, key_position: Tensor) -> Tensor:
        turned, other = rotation(query_position)(query), rotation(key_position)(key)
        return torch.einsum("blnh,bsnh->bnls", turned, other)

    torch.testing.assert_close(
        scores(position + shift, position + shift), scores(position, position), rtol=0, atol=1e-9
    )
    assert (scores(position + shift, position) - scores(position, position)).abs().max() > 0.1


def test_dimensions_half_a_head_apart_rotate_together() -> None:
    """Unit n and unit n + H/2 rotate together, by the position times 10000^(-2n/H)."""
    x, position = normal(1, 1, 1, 8), 5
    turned = rotation(torch.tensor([[position]]))(x)[0, 0, 0]
    for n in range(4):
        angle = torch.tensor(position * 10_000 ** (-2 * n / 8), dtype=torch.float64)
        first, second = x[0, 0, 0, n], x[0, 0, 0, n + 4]
        expected = first * angle.cos() - second * angle.sin()
        torch.testing.assert_close(turned[n], expected, **EXACT)
        expected = second * angle.cos() + first * angle.sin()
        torch.testing.assert_close(turned[n + 4], expected, **EXACT)


def test_angles_stay_float32_under_bfloat16() -> None:
    """In bfloat16 itself the positions 4096 to 4111 would all be 4096."""
    position = torch.arange(4096, 4112)[None]
    assert len(position.bfloat16().unique()) == 1
    narrow, wide = rotation(position, torch.bfloat16), rotation(position, torch.float64)
    assert narrow.cos.dtype == narrow.signed_sin.dtype == torch.bfloat16
    for found, true in ((narrow.cos, wide.cos), (narrow.signed_sin, wide.signed_sin)):
        assert (found - true).abs().max() < 2**-8 + 1e-3


# Norms


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm_equals_transformers_bitwise(dtype: torch.dtype) -> None:
    from transformers.models.gemma.modeling_gemma import GemmaRMSNorm

    norm, hf_norm = randomised(RMSNorm(24, 1e-6), dtype=dtype), GemmaRMSNorm(24, 1e-6).to(dtype)
    hf_norm.load_state_dict(norm.state_dict())
    x = 30 * normal(4, 9, 24, dtype=dtype)
    assert torch.equal(norm(x), hf_norm(x))


# Blocks


def test_the_mlp_is_gated_by_the_tanh_gelu_of_its_first_half() -> None:
    mlp, x = randomised(GemmaMLP(CONFIG)), normal(2, 5, 24)
    gate, up = mlp.gate_up_proj.weight.chunk(2)
    expected = (F.gelu(x @ gate.T, approximate="tanh") * (x @ up.T)) @ mlp.down_proj.weight.T
    torch.testing.assert_close(mlp(x), expected, **EXACT)


@pytest.mark.parametrize(
    ("width", "dtype", "factor"),
    [(2048, torch.bfloat16, 45.25), (2048, torch.float32, 45.2548), (64, torch.float32, 8.0)],
)
def test_text_is_scaled_by_the_root_of_the_width(
    width: int, dtype: torch.dtype, factor: float
) -> None:
    decoder = Gemma(DecoderConfig(width, 0, 1, 1, 1, 2, vocab_size=4)).to(dtype)
    with torch.no_grad():
        decoder.embed_tokens.weight.fill_(1)
    found = decoder.embed(torch.tensor([[3]]))
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), torch.full((1, 1, width), factor), rtol=0, atol=5e-5)


def test_a_tied_head_is_the_embedding_itself() -> None:
    decoder = randomised(Gemma(CONFIG))
    assert not any("lm_head" in name for name in decoder.state_dict())
    hidden = normal(3, 24)
    expected = hidden @ decoder.embed_tokens.weight.T
    torch.testing.assert_close(decoder.logits(hidden), expected, **EXACT)
    own = randomised(Gemma(CONFIG, tied=False))
    torch.testing.assert_close(own.logits(hidden), hidden @ own.lm_head.weight.T, **EXACT)


def test_gemma_has_the_published_number_of_weights() -> None:
    """The published 2,923,335,408 and 64 rows of the embedding that the Hub's files add."""
    config = parse_config(paligemma_3b())
    with torch.device("meta"):
        model = PaliGemma(config)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count == 2_923_335_408 + 64 * 2048
    assert parameters(config) == count
