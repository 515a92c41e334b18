"""PaliGemma in float16 with scaled activations: equal results, and no overflow at Gemma's size."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pgcli.device.select import choose_dtype
from pgcli.engine.tokenizer import left_pad
from pgcli.errors import InvalidCheckpoint, UsageError
from pgcli.model.config import DecoderConfig, PaliGemmaConfig, VisionConfig
from pgcli.model.cuda.optimize import fuse
from pgcli.model.optimize import (
    float16_problem,
    optimize_for_device,
    scale_for_float16,
)
from pgcli.model.paligemma import PaliGemma
from tests.support.sequences import run_together, vocabulary_of
from tests.support.tiny import randomised

CONFIG = PaliGemmaConfig(
    VisionConfig(32, 2, 64, 2, patch_size=14, resolution=56),
    DecoderConfig(128, 8, 512, 4, 1, 32, vocab_size=2048),
    image_token_id=2047,
)
ROWS, TOKENS = 48, 8
LARGEST = torch.finfo(torch.float16).max


def outliers(seed: int) -> PaliGemma:
    """Random weights with trained magnitudes: hidden states of thousands, a few of a hundred
    thousand, and products inside MLPs beyond 65,504.
    """
    model = randomised(PaliGemma(CONFIG), seed=seed, dtype=torch.float32)
    for layer in model.decoder.layers:
        layer.self_attn.o_proj.weight.mul_(100)
        gate_DH, up_DH = layer.mlp.gate_up_proj.weight.chunk(2)
        gate_DH[:4].mul_(200)
        up_DH[:4].mul_(200)
        layer.mlp.down_proj.weight[:2].mul_(20)  # the channels of massive activations
    return model


def peaks(model: PaliGemma) -> list[float]:
    """The largest unscaled hidden state of each layer."""
    assert model.decoder.peak_L is not None
    return (model.decoder.peak_L / model.decoder.residual_scale).tolist()


def answers(model: PaliGemma, dtype: torch.dtype) -> list[tuple[int, ...]]:
    """The tokens of rows with images and ragged prompts, in a dtype."""
    model = deepcopy(model).to(dtype)
    if dtype == torch.float16:
        scale_for_float16(model)
    generator = torch.Generator().manual_seed(0)
    prompts = [
        [2, *torch.randint(3, 2000, (3 + row % 4,), generator=generator).tolist(), 108]
        for row in range(ROWS)
    ]
    pixels_BCRR = torch.randn(ROWS, 3, 56, 56, generator=generator)
    with torch.inference_mode():
        patch_BPD = model.encode(pixels_BCRR.to(dtype))
        rows = run_together(model, patch_BPD, prompts, vocabulary_of(model), TOKENS)
    return [tuple(row.tokens) for row in rows]


def agreeing(answers_: list[tuple[int, ...]], expected: list[tuple[int, ...]]) -> int:
    """The number of tokens before the first difference of their row."""
    pairs = [zip(*pair, strict=True) for pair in zip(answers_, expected, strict=True)]
    return sum([*(a == b for a, b in pair), False].index(False) for pair in pairs)


@pytest.mark.parametrize("seed", [0, 1])
def test_tokens_agree_with_float32_more_often_than_in_bfloat16(seed):
    model = outliers(seed)
    expected = answers(model, torch.float32)
    counts = {
        dtype: agreeing(answers(model, dtype), expected)
        for dtype in (torch.float16, torch.bfloat16)
    }
    assert ROWS * TOKENS * 0.9 < counts[torch.float16] >= counts[torch.bfloat16]


def logits(model: PaliGemma) -> Tensor:
    """The logits of a ragged prefill and of two steps after it."""
    dtype = model.projector.weight.dtype
    generator = torch.Generator().manual_seed(1)
    pixels_BCRR = torch.randn(2, 3, 56, 56, generator=generator).to(dtype)
    token_BT, is_real_BT = left_pad([[2, 300, 301, 108], [2, 108]])
    cache = model.kv_cache(2, fixed_shape=True)
    with torch.inference_mode():
        found = [model.prefill(model.encode(pixels_BCRR), token_BT, is_real_BT, cache)]
        found += [model.decode_step(token_BT.new_tensor([300, step]), cache) for step in (400, 401)]
    return torch.cat(found)


@pytest.mark.parametrize("fused", [False, True])
def test_the_scale_changes_no_logit(fused):
    """In float64, with an epsilon large enough to matter, which is scaled too."""
    decoder = replace(CONFIG.decoder, norm_eps=100.0)
    model = randomised(PaliGemma(replace(CONFIG, decoder=decoder)))
    expected = logits(model)
    scale_for_float16(model)
    if fused:
        fuse(model)
    torch.testing.assert_close(logits(model), expected, rtol=1e-9, atol=1e-9)


def test_activations_of_gemma_overflow_without_the_scale_only():
    model = outliers(0).half()
    assert logits(model).isnan().any()
    model = outliers(0).half()
    optimize_for_device(model)  # scales it
    assert logits(model).isfinite().all()
    largest = peaks(model)
    assert 300 < largest[1] < max(largest) > LARGEST


@pytest.mark.parametrize("fused", [False, True])
def test_the_layer_that_overflows_is_named(fused):
    model = outliers(0)
    model.decoder.layers[4].mlp.down_proj.weight.mul_(10_000)
    model.half()
    scale_for_float16(model)
    if fused:
        fuse(model)
    patch_BPD = torch.zeros(1, 16, 128, dtype=torch.float16)
    with pytest.raises(InvalidCheckpoint, match=r"overflow in layer 5 of the decoder") as refused:
        run_together(model, patch_BPD, [[2, 108]], vocabulary_of(model), 2)
    assert refused.value.hint == "--dtype float32"
    with pytest.raises(InvalidCheckpoint, match="overflow in image features"):
        run_together(model, patch_BPD / 0, [[2, 108]], vocabulary_of(model), 2)


def test_float16_is_for_gpus_without_bfloat16_and_the_first_generation(monkeypatch):
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    second = replace(CONFIG, decoder=replace(CONFIG.decoder, post_norms=True))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert choose_dtype("float16", cuda, 1, float16_problem(CONFIG)) == torch.float16
    for device, config, text in ((cuda, second, "PaliGemma 2"), (cpu, CONFIG, "NVIDIA GPU")):
        with pytest.raises(UsageError, match=text):
            choose_dtype("float16", device, 1, float16_problem(config))
    with pytest.raises(UsageError, match="only PaliGemma 1 runs in float16"):
        choose_dtype("float16", cuda, 1)  # embeddings and training
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    with pytest.raises(UsageError, match="cuda supports bfloat16"):
        choose_dtype("float16", cuda, 1, float16_problem(CONFIG))
