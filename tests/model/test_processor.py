"""What a processor without AVX-512 can do, simulated by the limits of PyTorch and oneDNN."""

import pytest
import torch

from pgcli.model.cpu import processor
from pgcli.model.cpu.processor import has_bfloat16
from tests.support.kernels import ENVIRONMENT
from tests.support.runs import run_python

ASK = """
import torch
from pgcli.model.cpu.linear_kernels import PackedLinearKernel
from pgcli.model.cpu.processor import has_bfloat16, has_tiles, works
from pgcli.model.cpu.linear_kernels import Int8LinearKernel
for dtype in (torch.float32, torch.bfloat16):
    print(works(PackedLinearKernel, dtype))
print(works(Int8LinearKernel, torch.float32))
print(has_bfloat16(), has_tiles())
"""


def test_without_avx512_only_float32_is_packed():
    found = run_python(ASK, env=ENVIRONMENT).split()
    assert found == ["True", "False", "False", "False", "False"]


@pytest.mark.parametrize(
    ("avx512", "tiles", "limit", "has"),
    [
        (True, True, "ALL", True),
        (True, False, "AVX512_CORE_BF16", True),
        (True, False, "AVX512_CORE_VNNI", False),
        (False, False, "ALL", False),
    ],
)
def test_bfloat16_needs_avx512_and_its_instructions(monkeypatch, avx512, tiles, limit, has):
    monkeypatch.setattr(processor, "has_avx512", lambda: avx512)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    monkeypatch.setattr(processor, "has_tiles", lambda: tiles)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    assert has_bfloat16.__wrapped__() is has
