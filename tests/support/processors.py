"""Kinds of processors that tests simulate, as far as this one has their instructions."""

import os

import pytest
import torch

from pgcli.model import attention
from pgcli.model.cpu import optimize, packed_linear, processor
from pgcli.model.cpu.packed_linear import PackedLinearKernel
from pgcli.model.cpu.processor import has_bfloat16, has_tiles, works
from pgcli.model.quantized import cpu_linear
from pgcli.model.quantized.cpu_linear import Int8LinearKernel

#: Processes with these variables compute as on a processor without AVX-512.
AVX2 = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
ENVIRONMENT = os.environ | AVX2

HAS_INT8 = works(Int8LinearKernel, torch.float32)
#: Each kind with what it has: VNNI, bfloat16, tiles.
KINDS = {
    "avx2": (False, False, False),
    "vnni": (True, False, False),
    "bfloat16": (True, True, False),
    "tiles": (True, True, True),
}


def simulate(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Choose kernels as on a processor of this kind; skip what this one cannot compute."""
    has = KINDS[kind]
    for wanted, real, name in zip(
        has, (HAS_INT8, has_bfloat16(), has_tiles()), ("int8", "bfloat16", "tiles"), strict=True
    ):
        if wanted and not real:
            pytest.skip(f"this processor has no {name} kernels")
    vnni, bfloat16, tiles = has
    is_packed = {torch.float32: True, torch.bfloat16: bfloat16}

    def works_there(make_kernel: type, dtype: torch.dtype) -> bool:
        if make_kernel is Int8LinearKernel:
            return vnni
        return works(make_kernel, dtype) and (
            make_kernel is not PackedLinearKernel or is_packed.get(dtype, False)
        )

    for module in (attention, cpu_linear, optimize, packed_linear, processor):
        for name, value in (
            ("has_avx512", lambda: bfloat16),
            ("has_bfloat16", lambda: bfloat16),
            ("has_tiles", lambda: tiles),
            ("works", works_there),
        ):
            if hasattr(module, name) and module is not processor:
                monkeypatch.setattr(module, name, value)
