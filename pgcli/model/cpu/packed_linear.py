"""Weights laid out once for the processor: oneDNN's own order, and what follows a product fused.

As they are stored, weights are put in order anew in every product, which for a few rows costs more
than to multiply them.

B rows · L slots · M rows of any kind · D width · F width of an MLP · N width of what comes out
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pgcli.model.gemma import GemmaDecoderLayer as DecoderLayer
from pgcli.model.gemma import GemmaMLP as GatedMLP
from pgcli.model.gemma import QKVProjection
from pgcli.model.paligemma import PaliGemma
from pgcli.model.siglip import SiglipEncoderLayer as VisionLayer
from pgcli.model.siglip import SiglipMLP

PACK_ROWS = 256  # for which weights are laid out; other numbers of rows may be any
#: Of an MLP's inner values at once: a bound on memory alone. Blocks that stay in a core's cache are
#: no faster, and each of them reads all weights again, which a busy machine feels first.
BLOCK_BYTES = 128 * 2**20


class LinearKernel(Protocol):
    """A product with fixed weights, (M, D) to (M, N), and what can be done in the same pass."""

    def __call__(self, x_MD: Tensor) -> Tensor: ...

    def gelu(self, x_MD: Tensor) -> Tensor:
        """Followed by GELU, in its tanh approximation."""

    def mul(self, x_MD: Tensor, other_MN: Tensor) -> Tensor:
        """Times `other`, each value by its own."""


#: Makes a product of a weight (N, D) and a bias (N,), or none.
KernelFactory = Callable[[Tensor, Tensor | None], LinearKernel]


class PackedLinear:
    """A product whose weights are in oneDNN's order for this processor; the rounding is finer.

    What is fused reads the sums before they are rounded to the weights' dtype.
    """

    def __init__(self, weight_ND: Tensor, bias_N: Tensor | None = None):
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight_ND.contiguous(), PACK_ROWS)
        self._bias = bias_N

    def __call__(self, x_MD: Tensor) -> Tensor:
        return self._pass(x_MD, "none", "")

    def gelu(self, x_MD: Tensor) -> Tensor:
        return self._pass(x_MD, "gelu", "tanh")

    def mul(self, x_MD: Tensor, other_MN: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise.binary(
            x_MD, other_MN, self._weight, self._bias, "mul"
        )
        return out

    def _pass(self, x_MD: Tensor, then: str, way: str) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(
            x_MD, self._weight, self._bias, then, [], way
        )
        return out


@cache
def can_pack(dtype: torch.dtype) -> bool:
    """Whether this PyTorch lays weights out for this processor, and rightly: a trial tells.

    The operations are PyTorch's own compiler's, and not promised to anybody else.
    """
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    draws = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(32, 32, generator=draws).to(dtype) for _ in range(2))
    product = F.linear(x, weight)
    try:
        made = PackedLinear(weight)
        found = [made(x), made.gelu(x), made.mul(x, product)]
    except (RuntimeError, AttributeError, NotImplementedError):
        return False
    wanted = [product, F.gelu(product, approximate="tanh"), product * product]
    return all(
        torch.allclose(one, other, rtol=0.05, atol=0.05)
        for one, other in zip(found, wanted, strict=True)
    )


class PackedModule(nn.Module):
    """A product where a linear layer was."""

    def __init__(self, linear: nn.Linear, make: KernelFactory):
        super().__init__()
        self._product = make(linear.weight, linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self._product(x)


class PackedMLP(nn.Module):
    """The eye's MLP, in blocks of rows."""

    def __init__(self, mlp: SiglipMLP, make: KernelFactory):
        super().__init__()
        self._width = mlp.fc1.out_features
        self._up = make(mlp.fc1.weight, mlp.fc1.bias)
        self._down = make(mlp.fc2.weight, mlp.fc2.bias)

    def forward(self, x: Tensor) -> Tensor:
        return run_in_blocks(lambda rows_MD: self._down(self._up.gelu(rows_MD)), x, self._width)


class PackedGatedMLP(nn.Module):
    """The decoder's MLP, in blocks of rows."""

    def __init__(self, mlp: GatedMLP, make: KernelFactory):
        super().__init__()
        self._width = mlp.down_proj.in_features
        gate, up = mlp.gate_up_proj.weight.chunk(2)
        self._gate, self._up = make(gate, None), make(up, None)
        self._down = make(mlp.down_proj.weight, None)

    def forward(self, x: Tensor) -> Tensor:
        return run_in_blocks(self._block, x, self._width)

    def _block(self, x_MD: Tensor) -> Tensor:
        return self._down(self._up.mul(x_MD, self._gate.gelu(x_MD)))


class PackedQKVProjection(nn.Module):
    """Queries, keys and values; in two products where the last layer wants few queries."""

    def __init__(self, heads: QKVProjection, make: KernelFactory, *, parted: bool):
        super().__init__()
        parts = (
            torch.split_with_sizes(heads.weight, heads.split_sizes) if parted else [heads.weight]
        )
        self._products = [make(part, None) for part in parts]

    def forward(self, x: Tensor) -> Tensor:
        found = [product(x) for product in self._products]
        return found[0] if len(found) == 1 else torch.cat(found, dim=-1)

    def last_query(self, x: Tensor) -> tuple[Tensor, Tensor]:
        queries, others = self._products
        return queries(x[:, -1:]), others(x)


def run_in_blocks(act: Callable[[Tensor], Tensor], x: Tensor, width: int) -> Tensor:
    """What `act` makes of the rows of (..., D) by way of `width` inner values each.

    It is given a block of rows at a time, all of nearly a size: (M, D), or (M, 1, D) of a step.
    """
    x_MD = x if is_decode(x) else x.flatten(0, -2)
    blocks = -(-len(x_MD) * width * x.itemsize // BLOCK_BYTES)
    if blocks <= 1:
        return act(x_MD).view(*x.shape[:-1], -1)
    return torch.cat([act(block) for block in x_MD.tensor_split(blocks)]).view(*x.shape[:-1], -1)


def is_decode(x: Tensor) -> bool:
    """Whether these are rows of one slot each (B, 1, D), as a step has them."""
    return x.dim() == 3 and x.shape[1] == 1


def pack_weights(model: PaliGemma, make: KernelFactory, make_decoder: KernelFactory) -> None:
    """Give the layers of both towers products made of their weights, which are let go one by one.

    The decoder's two ends are one matrix, from which rows are read: they stay as they are.
    """
    for layer in cast(Iterable[VisionLayer], model.vision.layers):
        attention = layer.self_attn
        attention.add_module("qkv_proj", PackedModule(attention.qkv_proj, make))
        attention.add_module("out_proj", PackedModule(attention.out_proj, make))
        layer.add_module("mlp", PackedMLP(layer.mlp, make))
    last = model.config.decoder.depth - 1
    for number, block in enumerate(cast(Iterable[DecoderLayer], model.decoder.layers)):
        reading = block.self_attn
        heads = PackedQKVProjection(reading.qkv_proj, make_decoder, parted=number == last)
        reading.add_module("qkv_proj", heads)
        reading.add_module("o_proj", PackedModule(reading.o_proj, make_decoder))
        block.add_module("mlp", PackedGatedMLP(block.mlp, make_decoder))
