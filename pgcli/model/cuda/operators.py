"""Operators of the fused model: each is one kernel on a GPU, and plain PyTorch elsewhere.

They have no gradients.

B rows · L new slots · D width · X queries, keys and values of all heads · K key/value heads ·
H head size · V vocabulary
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pgcli.model.attention import softcap
from pgcli.model.cuda import plain
from pgcli.model.gemma import rms_norm
from pgcli.model.quantize import FLOAT8

LIBRARY = torch.library.Library("pgcli", "DEF")  # type: ignore[no-untyped-call]
#: The dtypes of the kernels, and the head sizes of kernels that multiply matrices.
KERNEL_DTYPES = (torch.bfloat16, torch.float32)
KERNEL_HEADS = (32, 64, 128, 256)


def _half(gate_up: Tensor) -> Tensor:
    return gate_up.new_empty(*gate_up.shape[:-1], gate_up.shape[-1] // 2)


def _fake_quantized(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.new_empty(*x.shape[:-1], 1, dtype=torch.float32)
    return torch.empty_like(x, dtype=FLOAT8), scale


def _fake_select(logits_BV: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor]:
    rows = len(logits_BV)
    logprob_B, near_logprob_B = logits_BV.new_empty(2, rows, dtype=torch.float32)
    return logits_BV.new_empty(rows, dtype=torch.long), logprob_B, near_logprob_B


def _fake_rotate(qkv_BLX: Tensor, _cos: Tensor, _sin: Tensor, key: Tensor, *_: object) -> Tensor:
    kv_heads, size = key.shape[1], key.shape[3]
    rows, length, width = qkv_BLX.shape
    return qkv_BLX.new_empty(rows, length, width // size - 2 * kv_heads, size)


def _fake_attend(
    qkv_BX: Tensor, _position: Tensor, _frequency: Tensor, key: Tensor, *_: object
) -> Tensor:
    return qkv_BX.new_empty(len(qkv_BX), qkv_BX.shape[1] - 2 * key.shape[1] * key.shape[3])


class Operator(NamedTuple):
    """An operator's arguments, its plain version, and its shapes on tensors without data."""

    schema: str
    plain: Callable[..., Any]
    fake: Callable[..., Any]


OPERATORS: dict[str, Operator] = {
    "rms_norm": Operator(
        "(Tensor x, Tensor scale, float eps) -> Tensor",
        rms_norm,
        lambda x, *_: torch.empty_like(x),
    ),
    "residual_norm": Operator(
        "(Tensor x, Tensor delta, Tensor? post_scale, Tensor scale, float eps) -> (Tensor, Tensor)",
        plain.residual_norm,
        lambda x, *_: (torch.empty_like(x), torch.empty_like(x)),
    ),
    "residual_layer_norm": Operator(
        "(Tensor x, Tensor delta, Tensor weight, Tensor bias, float eps) -> (Tensor, Tensor)",
        plain.residual_layer_norm,
        lambda x, *_: (torch.empty_like(x), torch.empty_like(x)),
    ),
    "linear_gelu": Operator(
        "(Tensor x, Tensor weight, Tensor bias) -> Tensor",
        plain.linear_gelu,
        lambda x, weight, _: x.new_empty(*x.shape[:-1], len(weight)),
    ),
    "geglu": Operator("(Tensor gate_up) -> Tensor", plain.geglu, _half),
    "softcap": Operator(
        "(Tensor x, float cap) -> Tensor",
        softcap,
        lambda x, _: torch.empty_like(x, dtype=torch.float32),
    ),
    "attend": Operator(
        "(Tensor qkv, Tensor position, Tensor frequency, Tensor(a!) key, Tensor(b!) value, "
        "Tensor mask, Tensor slot, float scale, float cap, "
        "Tensor? query_scale, Tensor? key_scale, float eps) -> Tensor",
        plain.attend,
        _fake_attend,
    ),
    "rotate": Operator(
        "(Tensor qkv, Tensor cos, Tensor signed_sin, Tensor(a!) key, Tensor(b!) value, "
        "Tensor? query_scale, Tensor? key_scale, float eps) -> Tensor",
        plain.rotate,
        _fake_rotate,
    ),
    "select_greedy": Operator(
        "(Tensor logits, int size, int excluded, int first_location, int locations, int near)"
        " -> (Tensor, Tensor, Tensor)",
        plain.select_greedy,
        _fake_select,
    ),
}
#: For models with MLPs in float8.
QUANTIZED_OPERATORS: dict[str, Operator] = {
    "residual_norm_quantized": Operator(
        "(Tensor x, Tensor delta, Tensor? post_scale, Tensor scale, float eps)"
        " -> (Tensor, Tensor, Tensor)",
        plain.residual_norm_quantized,
        lambda x, *_: (torch.empty_like(x), *_fake_quantized(x)),
    ),
    "geglu_quantized": Operator(
        "(Tensor gate_up) -> (Tensor, Tensor)",
        plain.geglu_quantized,
        lambda gate_up: _fake_quantized(_half(gate_up)),
    ),
}


def _register() -> None:
    library: Any = LIBRARY
    for name, operator in (OPERATORS | QUANTIZED_OPERATORS).items():
        library.define(name + operator.schema)
        library.impl(name, operator.plain, "CompositeExplicitAutograd")
        library.impl(name, operator.fake, "Meta")
        if torch.version.cuda and find_spec("triton"):
            library.impl(name, _kernel_or_plain(name, operator), "CUDA")


def _kernel_or_plain(name: str, operator: Operator) -> Callable[..., Any]:
    """The kernel of this name, or the plain version for inputs that it does not support."""

    def run(first: Tensor, *others: Any) -> Any:
        from pgcli.model.cuda import kernels

        has_kernel = first.dtype in KERNEL_DTYPES and (
            name not in ("attend", "rotate") or others[2].shape[-1] in KERNEL_HEADS
        )
        if not has_kernel:
            return operator.plain(first, *others)
        # Triton launches on the current device, and PyTorch switches only for its own operators
        with torch.cuda.device(first.device):
            return getattr(kernels, name)(first, *others)

    return run


_register()
