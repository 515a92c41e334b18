"""A loaded model -> one whose products are the fastest that its device has."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

import torch

from pgcli.errors import NoUsableDevice, UsageError
from pgcli.model.cpu.int8_linear import Int8DecodeLinear, Int8Linear, can_quantize
from pgcli.model.cpu.packed_linear import KernelFactory, PackedLinear, can_pack, pack_weights
from pgcli.model.paligemma import PaliGemma

QUANTIZATIONS = ("none", "int8")
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's mallopt
KEPT_BYTES = 2**29


def check_quantization(name: str, device: torch.device, dtype: torch.dtype) -> None:
    """Raise UsageError for a name that is none, NoUsableDevice where the device cannot do it."""
    if name not in QUANTIZATIONS:
        raise UsageError(f"no quantization is called {name!r}", hint="none or int8")
    if name == "none":
        return
    if device.type != "cpu":
        raise NoUsableDevice(
            f"--quantize int8 is for processors, and the model would run on {device}",
            hint="leave it out, or --device cpu",
        )
    if not (can_pack(dtype) and can_quantize(dtype)):
        raise NoUsableDevice(
            "this PyTorch does not multiply eight-bit numbers on this processor",
            hint="leave --quantize out",
        )


def optimize_for_device(model: PaliGemma, quantization: str = "none") -> None:
    """Lay the model's weights out for its processor, in place; on a GPU they stay as they are.

    With `int8` the decoder's layers and its head are rounded to eight bits, for steps or for all;
    the head's own weights stay too, as prompts are read from them.
    """
    weight = model.projector.weight
    if weight.device.type != "cpu":
        return
    keep_freed_memory()
    if not can_pack(weight.dtype):
        return
    if quantization != "int8":
        pack_weights(model, PackedLinear, PackedLinear)
        return
    make: KernelFactory = Int8DecodeLinear if reads_prompts_wide(weight.dtype) else Int8Linear
    pack_weights(model, PackedLinear, make)
    model.decoder.scores = Int8Linear(model.decoder.head).forward_fp32


def keep_freed_memory() -> None:
    """Have the C library keep what a pass frees for the next one, up to half a gigabyte.

    To have the system give and clear the same hundred megabytes in every layer takes a sixth of the
    time in which a full-size model reads prompts. glibc listens, others do not; whoever has set it
    in the environment is obeyed.
    """
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_THRESHOLD, KEPT_BYTES)
        library.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def reads_prompts_wide(dtype: torch.dtype) -> bool:
    """Whether only steps are in eight bits, as with tiles for bfloat16 prompts are read sooner."""
    return dtype == torch.bfloat16 and torch.cpu._is_amx_tile_supported()


def packed_bytes(weights: int, dtype: torch.dtype, quantization: str) -> int:
    """What so many bytes of weights take once they are prepared."""
    both = quantization == "int8" and reads_prompts_wide(dtype)
    return weights * 3 // 2 if both else weights
