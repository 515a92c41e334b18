"""Optimizes the parts of a model for a GPU, with kernels where these are right on it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache, partial
from importlib import import_module

import torch
from torch import Tensor, nn

from pgcli.model.compiler_errors import build_failure, is_unsupported, raise_out_of_memory
from pgcli.model.config import PaliGemmaConfig
from pgcli.model.cuda import operators
from pgcli.model.cuda.fused import FusedGemma, FusedSiglip
from pgcli.model.gemma import GemmaDecoderLayer
from pgcli.model.paligemma import PaliGemma
from pgcli.model.quantized import quantize_mlp
from pgcli.text import first_line

#: The largest relative difference between a kernel and its plain version.
TOLERANCE = 0.05
ROWS_WITHOUT_SPLITS = 160  # more than half of `kernels.attention.PROGRAMS`
#: Makes an operator's arguments, the same at every call, because it may write to them.
Example = Callable[[], tuple[Tensor | float | None, ...]]


def optimize_part_for_cuda(model: PaliGemma, part: nn.Module, quantize: str = "none") -> None:
    """Quantize the MLP of a decoder layer if `quantize` is "fp8", in place.

    After the last of the model's `parts`, the model itself, the tower and the decoder are replaced
    by fused ones; warns if their kernels do not work.
    """
    if quantize != "none" and isinstance(part, GemmaDecoderLayer):
        quantize_mlp(part)
    if part is not model:
        return
    if quantize != "none":
        torch.cuda.empty_cache()  # the old weights' memory is free for batches
    weight = model.projector.weight
    if problem := kernel_problem(weight.device, weight.dtype, model.config):
        warnings.warn(
            f"the fused kernels do not work on {weight.device}; pgcli runs separate "
            f"operations, which is slower and gives the same answers ({problem})",
            stacklevel=1,
        )
        return
    fuse(model)


def fuse(model: PaliGemma) -> None:
    """Replace the model's vision tower and decoder by fused ones, in place, on any device."""
    model.add_module("vision", FusedSiglip(model.vision))
    model.add_module("decoder", FusedGemma(model.decoder))


@cache
def kernel_problem(device: torch.device, dtype: torch.dtype, model: PaliGemmaConfig) -> str:
    """Why the kernels cannot be used; empty if they compute examples of the model's shapes right.

    Device and out-of-memory errors are raised, since they say nothing about the kernels.
    """
    try:
        wrong = [
            name
            for name, examples in _examples(device, dtype, model).items()
            if not all(_is_right(name, make) for make in examples)
        ]
    except Exception as error:
        raise_out_of_memory(error)
        if not is_unsupported(error):
            raise
        return build_failure(error)
    return f"wrong results of {', '.join(wrong)}" if wrong else ""


def triton_problem(device: torch.device) -> str:
    """Why Triton cannot build and run a kernel on a GPU; empty if it can."""
    try:
        import_module("triton")  # without it, the operator is plain
        torch.ops.pgcli.softcap(torch.ones(8, device=device), 2.0)
        torch.cuda.synchronize(device)
    except Exception as error:  # noqa: BLE001, it becomes a finding
        return first_line(error)
    return ""


def _is_right(name: str, make: Example) -> bool:
    """Whether an operator agrees with its plain version."""
    plain = operators.OPERATORS[name].plain
    results, expected = (run(*make()) for run in (getattr(torch.ops.pgcli, name), plain))
    if isinstance(results, Tensor):
        results, expected = (results,), (expected,)
    pairs = [(x.double(), y.double()) for x, y in zip(results, expected, strict=True)]
    return all(bool((x - y).norm() <= TOLERANCE * y.norm()) for x, y in pairs)


def _examples(
    device: torch.device, dtype: torch.dtype, model: PaliGemmaConfig
) -> dict[str, list[Example]]:
    """Examples of each operator, in the variants that this model runs."""
    config, vision = model.decoder, model.vision
    width, size, heads = config.width, config.head_dim, config.num_kv_heads
    outputs = (config.num_heads + 2 * heads) * size

    def drawn(*shape: int, like: torch.dtype = dtype) -> Tensor:
        generator = torch.Generator().manual_seed(sum(shape))
        return torch.randn(shape, generator=generator).to(device, like)

    scale_H = drawn(size, like=torch.float32) if config.qk_norm else None
    head_norm = scale_H, scale_H, config.norm_eps

    def attention(rows: int) -> tuple[Tensor | float | None, ...]:
        slot_B = torch.arange(rows, device=device) * 79 // rows
        return (
            *(drawn(rows, outputs), slot_B + 1, drawn(size // 2, like=torch.float32)),
            *(drawn(rows, heads, 80, size), drawn(rows, heads, 80, size)),
            *(torch.arange(80, device=device) <= slot_B[:, None], slot_B),
            *(config.query_scale, config.attn_softcap or 0.0, *head_norm),
        )

    def rotation() -> tuple[Tensor | float | None, ...]:
        angle = drawn(2, 3, 1, size // 2)
        cos, sin = angle.cos(), angle.sin()
        return (
            *(drawn(2, 3, outputs), torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)),
            *(drawn(2, heads, 3, size), drawn(2, heads, 3, size), *head_norm),
        )

    scale_D, columns = drawn(width, like=torch.float32), 20_000
    post_D = scale_D if config.post_norms else None
    vision_D = drawn(vision.width), drawn(vision.width)
    return {
        "rms_norm": [lambda: (drawn(2, width), scale_D, config.norm_eps)],
        "residual_norm": [
            lambda: (drawn(2, width), drawn(2, width), post_D, scale_D, config.norm_eps)
        ],
        "residual_layer_norm": [
            lambda: (*(drawn(n, vision.width) for n in (2, 2)), *vision_D, vision.norm_eps)
        ],
        "linear_gelu": [
            lambda: (
                *(drawn(2, vision.width), drawn(vision.mlp_dim, vision.width)),
                drawn(vision.mlp_dim),
            )
        ],
        "geglu": [lambda: (drawn(2, 2 * config.mlp_dim),)],
        "softcap": [lambda: (drawn(2, 64), config.final_softcap or 2.0)],
        # every column is a location, so that some are near the token
        "select_greedy": [lambda: (drawn(2, columns), columns - 10, 3, 0, columns - 10, 16)],
        "rotate": [rotation],
        # few rows, with split slots, and enough rows to leave them whole
        "attend": [partial(attention, 2), partial(attention, ROWS_WITHOUT_SPLITS)],
    }
