"""Whether the fused kernels work on a device."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from pgcli.model.compiler_errors import is_unsupported, raise_out_of_memory
from pgcli.model.cuda import operators
from pgcli.printable import first_line

#: The largest relative difference of a kernel from its plain version.
TOLERANCE = 0.05


@cache
def kernel_problem(device: torch.device, dtype: torch.dtype, head_dim: int) -> str:
    """Why the kernels cannot be used; empty if small examples are right on this device.

    Errors of the device and of memory are raised: they say nothing about the kernels.
    """
    try:
        wrong = [
            name for name in operators.OPERATORS if not _is_right(name, device, dtype, head_dim)
        ]
    except Exception as error:
        raise_out_of_memory(error)
        if not is_unsupported(error):
            raise
        return first_line(error)
    return f"wrong results of {', '.join(wrong)}" if wrong else ""


def _is_right(name: str, device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    """Whether an operator gives what its plain version gives."""
    plain = operators.OPERATORS[name].plain
    found, expected = (
        run(*_example(name, device, dtype, head_dim))
        for run in (getattr(torch.ops.pgcli, name), plain)
    )
    if isinstance(found, Tensor):
        found, expected = (found,), (expected,)
    pairs = [(one.double(), other.double()) for one, other in zip(found, expected, strict=True)]
    return all(bool((one - other).norm() <= TOLERANCE * other.norm()) for one, other in pairs)


def _example(
    name: str, device: torch.device, dtype: torch.dtype, head_dim: int
) -> tuple[Tensor | float | None, ...]:
    """Small arguments of an operator, the same at every call."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int, like: torch.dtype = dtype) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, like)

    scale_D, turn = drawn(64, like=torch.float32), drawn(2, 3, 1, head_dim // 2)
    examples: dict[str, tuple[Tensor | float | None, ...]] = {
        "rms_norm": (drawn(2, 64), scale_D, 1e-6),
        "residual_norm": (drawn(2, 64), drawn(2, 64), scale_D, scale_D, 1e-6),
        "geglu": (drawn(2, 64),),
        "softcap": (drawn(2, 64), 2.0),
        "select_greedy": (drawn(2, 300), 290, 3, 100, 150, 16),
        "select_sampled": (
            *(drawn(2, 300), torch.tensor([0.3, -1.0], device=device), 0.9, 100, 0.8),
            *(290, 3, 0, 290, 16),  # all are near locations
        ),
        "rotate": (
            *(drawn(2, 3, 4 * head_dim), drawn(2, 3, 1, head_dim)),
            torch.cat([-turn, turn], dim=-1),
            *(drawn(2, 1, 3, head_dim), drawn(2, 1, 3, head_dim)),
        ),
        "attend": (
            drawn(2, 4 * head_dim),
            torch.tensor([4, 70], device=device),
            drawn(head_dim // 2, like=torch.float32),
            *(drawn(2, 1, 80, head_dim), drawn(2, 1, 80, head_dim)),
            torch.arange(80, device=device) <= torch.tensor([[3], [69]], device=device),
            torch.tensor([3, 69], device=device),
            *(head_dim**-0.5, 3.0),
        ),
    }
    return examples[name]
