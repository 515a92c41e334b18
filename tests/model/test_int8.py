"""Int8: rounding of linear layers, changed answers, and errors for unsupported devices."""

import json

import pytest
import torch
from pyarrow import parquet
from torch.nn import functional as F

from examples.demo_model.scenes import Scene, render
from pgcli.checkpoints.find import Checkpoint
from pgcli.cli.main import main
from pgcli.engine.loader import open_engine
from pgcli.errors import UsageError
from pgcli.model.cpu import linear_kernels, optimize
from pgcli.model.cpu.linear_kernels import (
    CompactInt8LinearKernel,
    Int8DecodeLinearKernel,
    Int8LinearKernel,
    PackedLinearKernel,
)
from pgcli.model.cpu.processor import has_bfloat16, works
from pgcli.model.quantize import VALUES_AT_ONCE

needs_int8 = pytest.mark.skipif(
    not works(Int8LinearKernel, torch.float32), reason="this processor does not multiply int8"
)
needs_bfloat16 = pytest.mark.skipif(
    not (has_bfloat16() and works(Int8LinearKernel, torch.float32)),
    reason="this processor does not multiply bfloat16",
)


@pytest.fixture(
    params=[
        pytest.param(Int8LinearKernel, marks=needs_int8),
        pytest.param(CompactInt8LinearKernel, id="compact"),
    ]
)
def kernel(request):
    return request.param


def drawn(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def whole_numbers(rows, width, *, seed=0):
    """Integers that int8 represents exactly: each row has 126 (127 for weights)."""
    generator = torch.Generator().manual_seed(seed)
    found = torch.randint(-126, 127, (rows, width), generator=generator).float()
    found[:, 0] = 126
    return found


@pytest.mark.parametrize("rows", [1, 3, 64, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_int8_output_is_within_rounding_of_float32(kernel, rows, dtype):
    weight, x = drawn(96, 192, dtype=dtype), drawn(rows, 192, dtype=dtype, seed=1)
    made, wanted = kernel(weight), F.linear(x.float(), weight.float())
    found = made(x)
    assert found.dtype == dtype
    assert (found.float() - wanted).norm() < 0.015 * wanted.norm()
    other = drawn(rows, 96, dtype=dtype, seed=2)
    torch.testing.assert_close(made.mul(x, other), found * other, rtol=0, atol=0)
    gelu = F.gelu(found, approximate="tanh")
    torch.testing.assert_close(made.gelu(x), gelu, rtol=1e-2, atol=1e-2)
    exact = made.forward_fp32(x)
    assert exact.dtype == torch.float32
    assert (exact - wanted).norm() < 0.015 * wanted.norm()


@needs_int8
def test_sums_are_exact():
    """Sums of int8 values are exact, for any number of terms."""
    x, weight = whole_numbers(5, 20_000), whole_numbers(40, 20_000, seed=1)
    weight[:, 0] = 127
    found = Int8LinearKernel(weight)(x)
    torch.testing.assert_close(
        found.double(), F.linear(x.double(), weight.double()), rtol=1e-6, atol=0
    )


def test_each_channel_has_its_own_scale(kernel):
    """Large values in one channel or token do not affect the others."""
    weight, x = drawn(64, 96), drawn(9, 96, seed=1)
    weight[7] *= 1e4
    x[3] *= 1e4
    wanted, found = F.linear(x, weight), kernel(weight)(x)
    error = (found - wanted).abs() / (x.norm(dim=1)[:, None] * weight.norm(dim=1))
    assert error.max() < 0.01


@needs_int8
def test_a_token_does_not_depend_on_its_batch():
    weight, x = drawn(64, 96), drawn(40, 96, seed=1)
    made = Int8LinearKernel(weight)
    alone = torch.cat([made(row[None]) for row in x])
    torch.testing.assert_close(made(x), alone, rtol=0, atol=0)


def test_zeros_are_zeros_a_bias_is_added_and_the_weights_stay(kernel):
    weight, x, bias = drawn(8, 16), drawn(3, 16), drawn(8, seed=4)
    weight[2], x[1] = 0, 0
    before, found = weight.clone(), kernel(weight)(x)
    assert not found[1].any()
    assert not found[:, 2].any()
    assert found.isfinite().all()
    torch.testing.assert_close(kernel(weight, bias)(x), found + bias)
    assert torch.equal(weight, before)


def test_a_large_lm_head_is_quantized_in_chunks(kernel):
    channels = VALUES_AT_ONCE // 16
    weight, x = drawn(channels + 5, 16), drawn(3, 16)
    whole = kernel(weight)(x)
    for part in (slice(0, 9), slice(channels - 2, channels + 5)):
        torch.testing.assert_close(whole[:, part], kernel(weight[part])(x), rtol=0, atol=0)


@needs_bfloat16
def test_int8_decode_linear_quantizes_decode_only():
    weight, other = drawn(64, 96), drawn(5, 7, 64, seed=3)
    both, rounded, wide = (
        Int8DecodeLinearKernel(weight),
        Int8LinearKernel(weight),
        PackedLinearKernel(weight),
    )
    x = drawn(5, 7, 96, seed=1)
    step = x[:, :1]
    for way in ("__call__", "gelu"):
        assert torch.equal(getattr(both, way)(x), getattr(wide, way)(x))
        assert torch.equal(getattr(both, way)(step), getattr(rounded, way)(step))
    assert torch.equal(both.mul(x, other), wide.mul(x, other))
    assert torch.equal(both.mul(step, other[:, :1]), rounded.mul(step, other[:, :1]))
    assert not torch.equal(both(step), wide(step))


@needs_bfloat16
@pytest.mark.parametrize("has_tiles", [True, False])
def test_prefill_is_not_quantized_on_a_cpu_with_amx(monkeypatch, tiny, has_tiles):
    """In bfloat16, decode uses int8, and both copies of the weights take memory."""
    for module in (optimize, linear_kernels):
        monkeypatch.setattr(module, "has_tiles", lambda: has_tiles)
    found = []
    for quantization in ("none", "int8"):
        engine = open_engine(
            Checkpoint("t", tiny), device="cpu", dtype="bfloat16", quantize=quantization
        )
        x = drawn(2, 6, engine.model.config.decoder.width, dtype=torch.bfloat16)
        mlp = engine.model.decoder.layers[0].mlp
        found.append((mlp(x), mlp(x[:, :1])))
    (prompts, steps), (rounded_prompts, rounded_steps) = found
    assert torch.equal(prompts, rounded_prompts) == has_tiles
    assert not torch.equal(steps, rounded_steps)


def test_only_decoder_and_lm_head_are_quantized(tiny):
    exact = open_engine(Checkpoint("tiny", tiny), device="cpu").model
    rounded = open_engine(Checkpoint("tiny", tiny), device="cpu", quantize="int8").model
    pixels_BCRR = torch.rand(2, 3, 56, 56) * 2 - 1
    torch.testing.assert_close(
        exact.encode(pixels_BCRR), rounded.encode(pixels_BCRR), rtol=0, atol=0
    )
    x = drawn(2, exact.config.decoder.width)
    wanted, found = exact.decoder.logits(x), rounded.decoder.logits(x)
    assert not torch.equal(found, wanted)
    assert (found - wanted).norm() < 0.015 * wanted.norm()


def test_int8_logits_are_softcapped(tiny2):
    rounded = open_engine(Checkpoint("tiny2", tiny2), device="cpu", quantize="int8").model
    cap = rounded.config.decoder.final_softcap
    logits = rounded.decoder.logits(drawn(2, rounded.config.decoder.width) * 100)
    assert logits.abs().max() <= cap


def test_unknown_quantization_is_an_error(tiny):
    with pytest.raises(UsageError, match="unknown quantization 'int4'"):
        open_engine(Checkpoint("tiny", tiny), device="cpu", quantize="int4")


@needs_int8
def test_a_wrong_int8_kernel_is_not_used():
    class Doubled(Int8LinearKernel):
        def __call__(self, x_MD):
            return 2 * super().__call__(x_MD)

    assert works(Int8LinearKernel, torch.float32)
    assert not works(Doubled, torch.float32)


def test_plan_and_settings_name_the_quantization(tmp_path, capsys):
    render(Scene.from_seed(1)).save(tmp_path / "one.png")
    arguments = ["caption", str(tmp_path), "--model", "demo", "--quantize", "int8"]
    assert main([*arguments, "--dry-run"]) == 0
    assert "quantize: int8" in capsys.readouterr().err
    output = tmp_path / "rows.parquet"
    assert main([*arguments, "-o", str(output), "-q"]) == 0
    settings = json.loads(parquet.read_schema(output).metadata[b"pgcli"])
    assert settings["quantize"] == "int8"
