"""What a processor without AVX-512 can do, simulated by the limits of PyTorch and oneDNN."""

import os

import pytest
import torch

from pgcli.model.cpu import processor
from pgcli.model.cpu.processor import has_bfloat16
from tests.support.runs import run_python

#: Processes with these variables compute as on a processor without AVX-512.
AVX2 = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}

ASK = """
import torch
from pgcli.model.cpu.optimize import supports_int8
from pgcli.model.cpu.packed_linear import PackedLinearKernel
from pgcli.model.cpu.processor import has_bfloat16, has_tiles, works
for dtype in (torch.float32, torch.bfloat16):
    print(works(PackedLinearKernel, dtype), supports_int8(dtype))
print(has_bfloat16(), has_tiles())
"""


def test_without_avx512_only_float32_is_packed():
    found = run_python(ASK, env=os.environ | AVX2).split()
    assert found == ["True", "False", "False", "False", "False", "False"]


@pytest.mark.parametrize(
    ("limit", "has"),
    [("", False), ("AVX2", False), ("avx512_core_vnni", False)]
    + [(limit, True) for limit in ("default", "ALL", "AVX512_CORE_AMX", "avx512_core_amx_fp16")],
)
def test_limit_of_onednn_hides_tiles(monkeypatch, limit, has):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    assert processor.has_tiles.__wrapped__() is has


@pytest.mark.parametrize(
    ("capability", "tiles", "native", "has"),
    [
        ("AVX512", True, False, True),
        ("AVX512", False, True, True),
        ("AVX512", False, False, False),
        ("AVX2", False, True, False),
        ("DEFAULT", False, False, False),
    ],
)
def test_bfloat16_needs_avx512_and_its_instructions(monkeypatch, capability, tiles, native, has):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(processor, "has_tiles", lambda: tiles)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: native)
    assert has_bfloat16.__wrapped__() is has
