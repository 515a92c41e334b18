"""Int8: rounding of linear layers, changed answers, and errors for unsupported devices."""

import pytest
import torch
from torch.nn import functional as F

from pgcli.checkpoints.find import Checkpoint
from pgcli.engine.loader import open_engine
from pgcli.errors import UsageError
from pgcli.model.cpu.linear_kernels import (
    CompactInt8LinearKernel,
    Int8DecodeLinearKernel,
    Int8LinearKernel,
    PackedLinearKernel,
)
from pgcli.model.cpu.processor import has_bfloat16, works

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
def test_a_token_does_not_depend_on_its_batch():
    weight, x = drawn(64, 96), drawn(40, 96, seed=1)
    made = Int8LinearKernel(weight)
    alone = torch.cat([made(row[None]) for row in x])
    torch.testing.assert_close(made(x), alone, rtol=0, atol=0)


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
