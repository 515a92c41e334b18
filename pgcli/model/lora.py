"""Linear layers with low-rank adapters beside their weights.

M rows of any kind · D input width · N output width · r rank
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pgcli.model.gemma import QKVProjection
from pgcli.model.quantized import Int8FrozenQKVProjection


class LoraAdapter(nn.Module):
    """`scale * lora_B @ lora_A`, which is added to a weight (N, D).

    The matrices are float32 or wider, because updates of bfloat16 weights would round to nothing.
    `lora_A` starts Kaiming-uniform and `lora_B` at zero, as in PEFT.
    """

    def __init__(
        self, in_features: int, out_features: int, *, rank: int, scale: float, dropout: float
    ):
        super().__init__()
        self.scale, self.dropout = scale, dropout
        self.lora_A = nn.Parameter(torch.zeros(rank, in_features))
        self.lora_B = nn.Parameter(torch.zeros(out_features, rank))

    def init(self, generator: torch.Generator) -> None:
        """Initialize `lora_A` randomly and `lora_B` with zeros."""
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5), generator=generator)
        nn.init.zeros_(self.lora_B)


class LoraLinear(nn.Module):
    """Replaces a linear layer: its output plus the adapters' output, in the layer's dtype.

    A fused layer has an adapter for each of its parts, in the order of their rows.
    """

    def __init__(self, base: nn.Module, adapters: Mapping[str, LoraAdapter]):
        super().__init__()
        self.base = base
        self.adapters = nn.ModuleDict(adapters)

    def forward(self, x: Tensor) -> Tensor:
        return _sum(self.base(x), adapted([adapter for _, adapter in self.parts()], x))

    def parts(self) -> Iterator[tuple[str, LoraAdapter]]:
        """The names of the layer's parts, and their adapters."""
        for name, adapter in self.adapters.items():
            assert isinstance(adapter, LoraAdapter)
            yield name, adapter


class LoraQKVProjection(LoraLinear):
    """Replaces a `QKVProjection`, or its int8 version."""

    base: QKVProjection | Int8FrozenQKVProjection

    def last_query(self, x_BLD: Tensor) -> tuple[Tensor, Tensor]:
        """As `QKVProjection.last_query`."""
        query, key_value = self.base.last_query(x_BLD)
        q_adapter, *others = [adapter for _, adapter in self.parts()]
        return (
            _sum(query, adapted([q_adapter], x_BLD[:, -1:])),
            _sum(key_value, adapted(others, x_BLD)),
        )


def adapted(adapters: Sequence[LoraAdapter], x: Tensor) -> list[Tensor]:
    """The outputs of adapters with the same input, in the adapters' dtype.

    Without dropout all `lora_A` are one product; with dropout each adapter drops other inputs.
    """
    x = x.to(adapters[0].lora_A.dtype)
    if any(adapter.training and adapter.dropout for adapter in adapters):
        inner = [F.linear(F.dropout(x, adapter.dropout), adapter.lora_A) for adapter in adapters]
    else:
        ranks = [len(adapter.lora_A) for adapter in adapters]
        product = F.linear(x, torch.cat([adapter.lora_A for adapter in adapters]))
        inner = [*product.split_with_sizes(ranks, dim=-1)]
    return [
        F.linear(x_r * adapter.scale, adapter.lora_B)
        for x_r, adapter in zip(inner, adapters, strict=True)
    ]


def _sum(out: Tensor, deltas: Sequence[Tensor]) -> Tensor:
    """The output plus the parts' outputs side by side, rounded once to the output's dtype."""
    delta = deltas[0] if len(deltas) == 1 else torch.cat([*deltas], dim=-1)
    return (out + delta).to(out.dtype)
