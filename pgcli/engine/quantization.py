"""Checks that the device supports the quantization asked for."""

from __future__ import annotations

import torch

from pgcli.errors import NoUsableDevice, UsageError
from pgcli.model.cpu.optimize import supports_int8

QUANTIZATIONS = ("none", "int8")


def check_quantization(name: str, device: torch.device, dtype: torch.dtype) -> None:
    """Raise UsageError for an unknown name, NoUsableDevice if the device does not support it."""
    if name not in QUANTIZATIONS:
        raise UsageError(f"unknown quantization {name!r}", hint="none or int8")
    if name == "none":
        return
    if device.type != "cpu":
        raise NoUsableDevice(
            f"--quantize int8 is for CPUs, and the model would run on {device}",
            hint="leave it out, or --device cpu",
        )
    if not supports_int8(dtype):
        raise NoUsableDevice(
            "this build of PyTorch does not support int8 matrix multiplication on this CPU",
            hint="leave --quantize out",
        )
