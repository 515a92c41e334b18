"""Packed weights give the same outputs; if packing fails, the original weights are used."""

import pytest
import torch
from torch.nn import functional as F

from pgcli.checkpoints import weights
from pgcli.checkpoints.config import read_config
from pgcli.checkpoints.find import Checkpoint
from pgcli.engine.loader import open_engine
from pgcli.model.cpu import optimize
from pgcli.model.cpu.linear_kernels import CompactLinearKernel, PackedLinearKernel
from pgcli.model.cpu.optimize import (
    PackedProjection,
    run_in_blocks,
)
from pgcli.model.cpu.processor import works
from pgcli.model.optimize import optimize_for_device

NOISE = {torch.float32: 1e-5, torch.bfloat16: 0.02}  # relative to the norm

pytestmark = pytest.mark.skipif(
    not works(PackedLinearKernel, torch.float32), reason="this PyTorch cannot pack weights"
)


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=str)
def dtype(request):
    if not works(PackedLinearKernel, request.param):
        pytest.skip("this processor does not multiply bfloat16")
    return request.param


def assert_like(found, wanted, dtype=None):
    assert found.shape == wanted.shape
    assert found.dtype == wanted.dtype
    apart = (found.float() - wanted.float()).norm()
    assert apart <= NOISE[dtype or wanted.dtype] * wanted.float().norm()


def drawn(*shape, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype) / shape[-1] ** 0.5


@pytest.mark.parametrize("rows", [1, 2, 7, 64, 257, 700])
@pytest.mark.parametrize(("inner", "outer"), [(16, 48), (33, 7), (192, 640)])
@pytest.mark.parametrize("biased", [False, True])
def test_packed_linear_and_fused_operations_equal_f_linear(rows, inner, outer, biased, dtype):
    weight, x = drawn(outer, inner, dtype=dtype), drawn(rows, inner, dtype=dtype, seed=1)
    bias = drawn(outer, dtype=dtype, seed=2) if biased else None
    made = PackedLinearKernel(weight, bias)
    product = F.linear(x, weight, bias)
    assert_like(made(x), product)
    gelu = F.gelu(product, approximate="tanh")
    assert_like(made.gelu(x), gelu)
    other = drawn(rows, outer, dtype=dtype, seed=3)
    assert_like(made.mul(x, other), product * other)


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 100])
def test_run_in_blocks_equals_one_call(monkeypatch, rows):
    monkeypatch.setattr(optimize, "BLOCK_BYTES", 8 * 10 * 4)  # eight rows of ten inner values
    sizes = []

    def act(block_MD):
        sizes.append(len(block_MD))
        return block_MD[:, :3] * 2

    x = drawn(rows, 2, 5, dtype=torch.float32)
    torch.testing.assert_close(run_in_blocks(act, x, 10), x[..., :3] * 2, rtol=0, atol=0)
    assert sum(sizes) == 2 * rows
    assert max(sizes) <= 8
    assert max(sizes) - min(sizes) <= 1


def test_packing_keeps_no_original_weights(tiny):
    model = open_engine(Checkpoint("tiny", tiny), device="cpu").model
    layers = [*model.vision.layers, *model.decoder.layers]
    matrices = [name for layer in layers for name, p in layer.named_parameters() if p.ndim == 2]
    assert not matrices
    assert any(isinstance(module, PackedProjection) for module in model.modules())


class Broken(PackedLinearKernel):
    def __init__(self, *weights):
        raise RuntimeError("no such operation")


class Wrong(PackedLinearKernel):
    def mul(self, x_MD, other_MN):
        return super().mul(x_MD, -other_MN)


@pytest.mark.parametrize("made", [Broken, Wrong])
def test_weights_are_not_packed_if_the_operators_fail(monkeypatch, tiny, made):
    monkeypatch.setattr(optimize, "PackedLinearKernel", made)
    model = open_engine(Checkpoint("tiny", tiny), device="cpu").model
    assert isinstance(model.vision.layers[0].self_attn.out_proj._kernel, CompactLinearKernel)
    pixels_BCRR = torch.zeros(1, 3, 56, 56)
    other = weights.load_paligemma(tiny, read_config(tiny), dtype=torch.float32)
    torch.testing.assert_close(model.encode(pixels_BCRR), other.encode(pixels_BCRR))


@pytest.mark.parametrize("block_bytes", [optimize.BLOCK_BYTES, 1024])
@pytest.mark.parametrize("name", ["tiny", "tiny2"])
def test_a_packed_model_equals_the_original(request, monkeypatch, name, dtype, block_bytes):
    monkeypatch.setattr(optimize, "BLOCK_BYTES", block_bytes)
    folder = request.getfixturevalue(name)
    stored, packed = (
        weights.load_paligemma(folder, read_config(folder), dtype=dtype) for _ in range(2)
    )
    optimize_for_device(packed)
    generator = torch.Generator().manual_seed(5)
    pixels_BCRR = (torch.rand(3, 3, 56, 56, generator=generator) * 2 - 1).to(dtype)
    token_BT = torch.tensor([[2, 30, 40, 50], [2, 31, 41, 51], [2, 32, 42, 52]])
    found = []
    for model in (stored, packed):
        cache = model.kv_cache(3)
        patch_BPD = model.encode(pixels_BCRR)
        logits_BV = model.prefill(patch_BPD, token_BT, None, cache)
        found.append((patch_BPD, logits_BV, model.decode_step(torch.tensor([7, 8, 9]), cache)))
    for one, other in zip(*found, strict=True):
        assert_like(one, other, dtype)
