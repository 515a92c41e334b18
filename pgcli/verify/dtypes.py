"""Chooses the dtypes in which `verify` compares, by free memory and speed."""

from __future__ import annotations

import torch

from pgcli.device.select import choose_dtype, cpu_has_bfloat16, free_bytes
from pgcli.engine.memory import LARGE_PARAMETERS
from pgcli.errors import NoUsableDevice
from pgcli.verify.case import Case
from pgcli.wording import byte_count


def choose_dtypes(
    requested: str, device: torch.device, case: Case, stored_bytes: int
) -> tuple[list[torch.dtype], list[str]]:
    """The dtypes to compare in, and the reasons for those that are skipped."""
    free, chosen, skipped = free_bytes(device), list[torch.dtype](), list[str]()
    candidates = [torch.float32, torch.bfloat16]
    if requested == "float16" and not case.float16_problem:
        candidates = [torch.float16]  # on any device, since nothing is generated
    elif requested != "auto":
        candidates = [choose_dtype(requested, device, stored_bytes, case.float16_problem)]
    for dtype in candidates:
        name = str(dtype).removeprefix("torch.")
        # float16 is compared with float32
        needed = case.memory(4 if dtype == torch.float16 else dtype.itemsize)
        is_slow = dtype == torch.bfloat16 and device.type == "cpu" and not cpu_has_bfloat16()
        if needed > free:
            skipped.append(
                f"{name}: needs {byte_count(needed)}, but {device} has {byte_count(free)} free"
            )
        elif requested == "auto" and is_slow and case.parameters > LARGE_PARAMETERS:
            skipped.append(f"{name}: slow on this processor; --dtype {name} includes it")
        else:
            chosen.append(dtype)
    if not chosen:
        raise NoUsableDevice(
            f"too little memory to compare in {skipped[-1]}",
            hint="close other programs, or use a larger machine",
        )
    return chosen, skipped
