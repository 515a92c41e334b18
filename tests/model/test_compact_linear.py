"""bfloat16 and int8 weights multiplied in float32: the same tokens on every kind of processor."""

import json

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from examples.demo_model.scenes import EVAL_SEEDS, Scene, render
from pgcli import tasks
from pgcli.checkpoints.find import find
from pgcli.engine.loader import open_engine
from pgcli.model.cpu import linear_kernels
from pgcli.model.cpu.linear_kernels import (
    CompactInt8LinearKernel,
    CompactLinearKernel,
    Int8DecodeLinearKernel,
    Int8LinearKernel,
    PackedLinearKernel,
)
from pgcli.model.cpu.optimize import choose_kernel
from pgcli.records import DecodedImage, Item
from tests.support.kernels import ENVIRONMENT, KINDS, simulate
from tests.support.runs import ROOT, run_python

#: Each kind's kernels: bfloat16, int8 in bfloat16, int8 in float32.
CHOSEN = {
    "avx2": (CompactLinearKernel, CompactInt8LinearKernel, CompactInt8LinearKernel),
    "vnni": (CompactLinearKernel, Int8LinearKernel, Int8LinearKernel),
    "bfloat16": (PackedLinearKernel, Int8LinearKernel, Int8LinearKernel),
    "tiles": (PackedLinearKernel, Int8DecodeLinearKernel, Int8LinearKernel),
}
WAYS = (("bfloat16", "none"), ("bfloat16", "int8"), ("float32", "int8"))
DRAWINGS = 8


def drawn(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("kind", KINDS)
def test_each_processor_has_one_kernel_for_each_way(monkeypatch, kind):
    simulate(monkeypatch, kind)
    found = tuple(choose_kernel(getattr(torch, dtype), quantize) for dtype, quantize in WAYS)
    assert found == CHOSEN[kind]
    assert choose_kernel(torch.float32) is PackedLinearKernel


@pytest.mark.parametrize("rows", [1, 4, 5, 16, 17, 64, 700])
@pytest.mark.parametrize(("inner", "outer"), [(16, 48), (33, 7), (24, 5), (192, 640)])
@pytest.mark.parametrize("kernel", [CompactLinearKernel, CompactInt8LinearKernel])
@pytest.mark.parametrize("block", [linear_kernels.MOST_CHANNELS, 32])
def test_compact_kernels_equal_f_linear(monkeypatch, rows, inner, outer, kernel, block):
    monkeypatch.setattr(linear_kernels, "MOST_CHANNELS", block)
    weight = drawn(outer, inner, dtype=torch.bfloat16)
    bias = drawn(outer, dtype=torch.bfloat16, seed=2)
    x = drawn(rows, inner, dtype=torch.bfloat16, seed=1)
    product = F.linear(x.float(), weight.float(), bias.float())
    made, noise = kernel(weight, bias), 0.005 if kernel is CompactLinearKernel else 0.02
    other = drawn(rows, outer, dtype=torch.bfloat16, seed=3)
    for found, wanted in (
        (made(x), product),
        (made.gelu(x), F.gelu(product, approximate="tanh")),
        (made.mul(x, other), product * other.float()),
        (made(x[:, None]), product[:, None]),
    ):
        assert found.dtype == torch.bfloat16
        assert found.shape == wanted.shape
        assert (found.float() - wanted).norm() < noise * wanted.norm()
    assert made.forward_fp32(x).dtype == torch.float32


def captions(dtype, quantize):
    """The built-in model's captions of drawings."""
    engine = open_engine(find("demo"), device="cpu", dtype=dtype, quantize=quantize, batch_size=4)
    side = engine.spec.resolution
    stream = []
    for index, seed in enumerate(EVAL_SEEDS[:DRAWINGS]):
        pixels = np.array(render(Scene.from_seed(seed)).convert("RGB").resize((side, side)))
        item = Item(index, str(index), str(index), prompts=("caption en",))
        stream.append((index, DecodedImage(item, side, side, pixels, 0.0)))
    question = tasks.caption(max_new_tokens=32)
    return [answer.answer for _, answer in sorted(engine.ask(stream, question))]


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_answers_agree_with_float32(monkeypatch, kind):
    """Every way of multiplying, on every kind of processor that this one can simulate."""
    simulate(monkeypatch, kind)
    exact = captions("float32", "none")
    for dtype, quantize in WAYS:
        found = captions(dtype, quantize)
        assert sum(map(str.__eq__, found, exact)) >= DRAWINGS - 1, (dtype, quantize)


IN_A_PROCESS = """
import json
from tests.model.test_compact_linear import WAYS, captions
print(json.dumps([captions(*way) for way in (("float32", "none"), *WAYS)]))
"""


def test_greedy_answers_agree_in_a_process_without_avx512():
    exact, *others = json.loads(run_python(IN_A_PROCESS, env=ENVIRONMENT, cwd=ROOT))
    assert all(sum(map(str.__eq__, found, exact)) >= DRAWINGS - 1 for found in others)
    assert sum(map(str.__eq__, captions("float32", "none"), exact)) >= DRAWINGS - 1
