"""In which dtypes there is room, and time, to compare."""

from __future__ import annotations

import torch

from pgcli.device.select import choose_dtype, cpu_has_bfloat16, free_bytes
from pgcli.engine.memory import LARGE_PARAMETERS, TEXT_SLOTS, needed_bytes, parameters
from pgcli.errors import NoUsableDevice
from pgcli.model.config import PaliGemmaConfig


def dtypes(
    asked: str, config: PaliGemmaConfig, device: torch.device, rows: int, stored_bytes: int
) -> tuple[list[torch.dtype], list[str]]:
    """The dtypes to compare in, and in words those that are left out."""
    free, taken, left_out = free_bytes(device), [], []
    numbers = [torch.float32, torch.bfloat16]
    if asked != "auto":
        numbers = [choose_dtype(asked, device, stored_bytes)]
    for number in numbers:
        name, needed = str(number).removeprefix("torch."), _needed(config, number.itemsize, rows)
        slow = number == torch.bfloat16 and device.type == "cpu" and not cpu_has_bfloat16()
        if needed > free:
            left_out.append(
                f"{name}: it needs {needed / 1e9:.1f} GB, and {device} has {free / 1e9:.1f} GB free"
            )
        elif asked == "auto" and slow and parameters(config) > LARGE_PARAMETERS:
            left_out.append(f"{name}: this processor is slow at it; --dtype {name} asks for it")
        else:
            taken.append(number)
    if not taken:
        raise NoUsableDevice(
            f"too little memory to compare in {left_out[-1]}",
            hint="close other programs, or run it on a larger machine",
        )
    return taken, left_out


def _needed(config: PaliGemmaConfig, itemsize: int, rows: int) -> int:
    """Memory for this code's batch, or for transformers' row, whose scores are whole."""
    decoder, vision = config.decoder, config.vision
    slots = config.image_tokens + TEXT_SLOTS
    scores = 12 * max(decoder.num_heads * slots**2, vision.num_heads * vision.num_patches**2)
    return max(needed_bytes(config, itemsize, rows), needed_bytes(config, itemsize, 1) + scores)
