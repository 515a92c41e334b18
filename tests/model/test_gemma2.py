"""Gemma 2: configurations, sliding window, softcaps."""

import shutil
from dataclasses import replace

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

from pgcli.checkpoints.config import parse_config
from pgcli.model import attention
from pgcli.model.attention import (
    chunked_attention,
    compiled_attention,
    grouped_attention,
    softcap,
)
from pgcli.model.gemma import Gemma
from tests.support.published import paligemma_3b
from tests.support.tiny import normal, randomised

# name -> text_config as published, and width, depth, MLP, heads, kv heads, head size
SIZES = {
    "3b": (
        {"hidden_size": 2304, "intermediate_size": 9216, "num_attention_heads": 8,
             "num_hidden_layers": 26, "num_key_value_heads": 4},
        (2304, 26, 9216, 8, 4, 256),
    ),
    "10b": (
        {"hidden_size": 3584, "intermediate_size": 14336, "num_attention_heads": 16,
             "num_hidden_layers": 42, "num_key_value_heads": 8},
        (3584, 42, 14336, 16, 8, 256),
    ),
    "28b": (
        {"hidden_size": 4608, "intermediate_size": 36864, "num_attention_heads": 32,
             "num_hidden_layers": 46, "num_key_value_heads": 16, "head_dim": 128,
             "query_pre_attn_scalar": 144},
        (4608, 46, 36864, 32, 16, 128),
    ),
}  # fmt: skip


def published(size="3b", **changes):
    text, _ = SIZES[size]
    text = {"model_type": "gemma2", "vocab_size": 257216, "eos_token_id": [1, 107], **text}
    # the width is in `projection_dim`; `hidden_size` is 2048 whatever it is
    return paligemma_3b() | {"projection_dim": text["hidden_size"], "text_config": text | changes}


def refusal(**changes):
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - the callers check the message
        parse_config(published(**changes))
    return str(refused.value)


class TestConfigurations:
    @pytest.mark.parametrize("size", SIZES)
    def test_every_published_size_is_read(self, size):
        config = parse_config(published(size))
        decoder = config.decoder
        found = (
            decoder.width,
            decoder.depth,
            decoder.mlp_dim,
            decoder.num_heads,
            decoder.num_kv_heads,
            decoder.head_dim,
        )
        assert found == SIZES[size][1]
        assert config.stop_tokens == (1,)  # transformers reads the top level first
        scalar = 144 if size == "28b" else 256
        assert decoder.query_scale == scalar**-0.5

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("attn_logit_softcapping", 0),
            ("attn_logit_softcapping", "50"),
            ("final_logit_softcapping", -1.0),
            ("sliding_window", 0),
            ("sliding_window", 0.5),
            ("sliding_window", 1),
            ("query_pre_attn_scalar", 0),
            ("query_pre_attn_scalar", 1 << 40),
            ("layer_types", ["full_attention"]),
            ("layer_types", ["full_attention"] * 27),
            ("layer_types", ["chunked_attention"] * 26),
            ("layer_types", "sliding_attention"),
            ("attention_bias", True),
            ("use_bidirectional_attention", False),
        ],
    )
    def test_value_out_of_range_is_named(self, key, value):
        assert f"text_config.{key}" in refusal(**{key: value})


class TestAttention:
    @pytest.mark.parametrize("masked", [None, "keys", "pairs"])
    def test_chunks_equal_the_formula(self, masked, monkeypatch):
        """softmax(cap tanh(q k scale / cap)) v, for blocks of any size."""
        query, key, value = (
            normal(2, 7, 6, 8),
            normal(2, 3, 9, 8, seed=2),
            normal(2, 3, 9, 8, seed=3),
        )
        mask = None
        if masked:
            mask = torch.rand(2, 1, 7 if masked == "pairs" else 1, 9) > 0.4
            mask[..., 0] = True
        score = torch.einsum("blkgh,bksh->bkgls", query.unflatten(2, (3, 2)), key) * 0.7
        score = 1.5 * torch.tanh(score / 1.5)
        if mask is not None:
            score = score.masked_fill(~mask[:, None], -torch.inf)
        expected = torch.einsum("bkgls,bksh->blkgh", score.softmax(-1), value).flatten(2)
        for scores in (2**23, 2 * 3 * 9 * 4, 1):
            monkeypatch.setattr(attention, "SCORES", scores)
            found = grouped_attention(query, key, value, mask, scale=0.7, cap=1.5)
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)

    def test_softcap_is_computed_in_float32(self):
        score = torch.tensor([100.0, 101.0]).bfloat16()
        assert softcap(score, 50.0).dtype == torch.float32
        assert softcap(score.double(), 50.0).dtype == torch.float64

    @pytest.mark.skipif(shutil.which("g++") is None, reason="nothing to compile with")
    @pytest.mark.nightly
    def test_the_compiled_kernel_computes_the_same(self, monkeypatch):
        """With padding and in views of a cache; one shape at a time, because PyTorch 2.13 generates
        C++ that does not compile for dynamic lengths and for a mask per query.
        """
        static = torch.compile(flex_attention, dynamic=False)
        monkeypatch.setattr(attention, "flex", lambda: static)
        query = normal(2, 2, 130, 32, dtype=torch.float32)
        key, value = normal(2, 2, 2, 150, 32, seed=2, dtype=torch.float32)[..., :141, :]
        mask = torch.rand(2, 1, 1, 141) > 0.3
        with torch.inference_mode():
            found = compiled_attention(query, key, value, mask, 0.2, 2.0)
            expected = chunked_attention(query, key, value, mask, 0.2, 2.0)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)

    @pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
    @pytest.mark.parametrize("masked", [1, 5])
    def test_compiled_attention_applies_a_mask_per_query(self, masked, monkeypatch):
        monkeypatch.setattr(attention, "flex", lambda: flex_attention)
        query, key, value = normal(2, 3, 5, 16), normal(2, 3, 7, 16), normal(2, 3, 7, 16, seed=2)
        mask = torch.rand(2, 1, masked, 7) > 0.5
        mask[..., 0] = True
        found = compiled_attention(query, key, value, mask, 0.5, 2.0)
        expected = chunked_attention(query, key, value, mask, 0.5, 2.0)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_logits_are_softcapped_in_float32():
    decoder = replace(parse_config(published()).decoder, width=8, depth=0, vocab_size=5, mlp_dim=1)
    model = randomised(Gemma(decoder), dtype=torch.bfloat16)
    x = normal(3, 8, dtype=torch.bfloat16) * 50
    logits = model.logits(x)
    assert logits.dtype == torch.float32
    assert logits.abs().max() < 30
    raw = (x @ model.embed_tokens.weight.T).float()
    torch.testing.assert_close(logits, 30 * torch.tanh(raw / 30))
    assert (raw.abs() > 30).any()
