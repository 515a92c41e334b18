"""Replaces a loaded model's modules by the fastest that its CPU supports.

B rows · L slots · M rows of any kind · D width
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pgcli.model.attention import at_least_float32
from pgcli.model.cpu.linear_kernels import (
    CompactInt8LinearKernel,
    CompactLinearKernel,
    Int8DecodeLinearKernel,
    Int8LinearKernel,
    PackedLinearKernel,
    is_decode,
)
from pgcli.model.cpu.processor import KernelFactory, has_bfloat16, has_tiles, works
from pgcli.model.gemma import (
    GemmaDecoderLayer,
    GemmaMLP,
    LMHead,
    QKVProjection,
    RMSNorm,
    rms_norm,
)
from pgcli.model.paligemma import PaliGemma
from pgcli.model.siglip import ImageClassifier, SiglipEncoderLayer, SiglipMLP, TwoTowers, activate

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 2**29


def optimize_part_for_cpu(model: PaliGemma, part: nn.Module, quantize: str = "none") -> None:
    """Pack the weights of one of the model's `parts` for its CPU, in place, and free the old ones.

    With `quantize` "int8" the decoder's layers and the LM head are quantized. The embedding is
    unchanged, because its rows are looked up; an LM head that is tied to it and not quantized uses
    it. On a GPU nothing changes.
    """
    embedding_VD = model.decoder.embed_tokens.weight
    if embedding_VD.device.type != "cpu":
        return
    dtype = next(part.parameters(), embedding_VD).dtype
    keep_freed_memory()
    if isinstance(part, LMHead):
        if make_head := choose_head_kernel(dtype, quantize):
            head = make_head(embedding_VD if part.weight is None else part.weight)
            model.decoder.add_module("lm_head", PackedLMHead(head.forward_fp32))
    elif isinstance(part, SiglipEncoderLayer):
        pack_encoder_layer(part, choose_kernel(dtype))
    elif isinstance(part, GemmaDecoderLayer):
        is_last = part is model.decoder.layers[-1]
        pack_decoder_layer(part, choose_kernel(dtype, quantize), is_last=is_last)
    elif part is model:
        pack_norms(model.decoder)
        if choose_kernel(dtype) is CompactLinearKernel and isinstance(model.projector, nn.Linear):
            model.add_module("projector", CompactProjection(model.projector))


def optimize_encoders_for_cpu(model: TwoTowers | ImageClassifier) -> None:
    """Pack the weights of both towers' layers for the CPU, in place. On a GPU nothing changes."""
    weight = model.vision.post_layernorm.weight
    if weight.device.type != "cpu":
        return
    keep_freed_memory()
    layers = list(model.vision.layers)
    if isinstance(model, TwoTowers) and model.text is not None:
        layers += model.text.layers
    for layer in cast(Iterable[SiglipEncoderLayer], layers):
        pack_encoder_layer(layer, choose_kernel(weight.dtype))


def choose_kernel(dtype: torch.dtype, quantize: str = "none") -> KernelFactory:
    """The fastest linear layer of a model in this dtype on this processor."""
    if quantize == "int8":
        return Int8DecodeLinearKernel if prefills_in_bf16(dtype) else _int8_kernel()
    is_slow = dtype == torch.bfloat16 and not has_bfloat16()
    return (
        CompactLinearKernel
        if is_slow or not works(PackedLinearKernel, dtype)
        else PackedLinearKernel
    )


def choose_head_kernel(
    dtype: torch.dtype, quantize: str
) -> type[CompactLinearKernel | Int8LinearKernel] | None:
    """As `choose_kernel`, for an LM head; None for PyTorch's own, which needs no other layout."""
    if quantize == "int8":
        return _int8_kernel()
    return CompactLinearKernel if choose_kernel(dtype) is CompactLinearKernel else None


def describe_processor() -> str:
    """The kind of this processor, and how it multiplies bfloat16 and int8 weights."""
    if has_bfloat16():
        kind = "AMX" if has_tiles() else "AVX-512 with bfloat16"
        return f"{kind}: multiplies bfloat16 and int8"
    if _int8_kernel() is Int8LinearKernel:
        return "VNNI without bfloat16: multiplies int8, and bfloat16 weights in float32"
    return "no VNNI: multiplies bfloat16 and int8 weights in float32"


def _int8_kernel() -> type[CompactInt8LinearKernel | Int8LinearKernel]:
    return Int8LinearKernel if works(Int8LinearKernel, torch.float32) else CompactInt8LinearKernel


def prefills_in_bf16(dtype: torch.dtype) -> bool:
    """Whether int8 is used only for decode steps, because bfloat16 tiles (AMX) prefill faster."""
    return dtype == torch.bfloat16 and has_tiles() and has_bfloat16()


def keep_freed_memory() -> None:
    """Have glibc keep up to 512 MiB of freed memory for later allocations.

    Otherwise the kernel maps and clears the same hundred megabytes in every layer, a sixth of the
    prefill time of a full-size model. Other C libraries ignore the call, and environment settings
    take precedence.
    """
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_THRESHOLD, KEPT_BYTES)
        library.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


#: The most bytes of an MLP's inner activations at once. Only memory is bounded: blocks that fit
#: into a core's cache are no faster, and each block reads all weights again.
BLOCK_BYTES = 128 * 2**20


class PackedProjection(nn.Module):
    """Replaces a `nn.Linear`."""

    def __init__(self, linear: nn.Linear, make_kernel: KernelFactory):
        super().__init__()
        self._kernel = make_kernel(linear.weight, linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self._kernel(x)


class CompactProjection(PackedProjection):
    """A `PackedProjection` whose weight, which its kernel shares, tells the model's dtype."""

    def __init__(self, linear: nn.Linear):
        super().__init__(linear, CompactLinearKernel)
        self.weight = linear.weight


class PackedMLP(nn.Module):
    """Replaces a `SiglipMLP`; runs in blocks of rows."""

    def __init__(self, mlp: SiglipMLP, make_kernel: KernelFactory):
        super().__init__()
        self._inner_width = mlp.fc1.out_features
        self._activation = mlp.activation
        self._up = make_kernel(mlp.fc1.weight, mlp.fc1.bias)
        self._down = make_kernel(mlp.fc2.weight, mlp.fc2.bias)

    def forward(self, x: Tensor) -> Tensor:
        return run_in_blocks(self._block, x, self._inner_width)

    def _block(self, x_MD: Tensor) -> Tensor:
        if self._activation == "gelu_tanh":
            return self._down(self._up.gelu(x_MD))
        return self._down(activate(self._up(x_MD), self._activation))


class PackedGatedMLP(nn.Module):
    """Replaces a `GemmaMLP`; runs in blocks of rows."""

    def __init__(self, mlp: GemmaMLP, make_kernel: KernelFactory):
        super().__init__()
        self._inner_width = mlp.down_proj.in_features
        gate, up = mlp.gate_up_proj.weight.chunk(2)
        self._gate, self._up = make_kernel(gate, None), make_kernel(up, None)
        self._down = make_kernel(mlp.down_proj.weight, None)

    def forward(self, x: Tensor) -> Tensor:
        return run_in_blocks(self._block, x, self._inner_width)

    def _block(self, x_MD: Tensor) -> Tensor:
        return self._down(self._up.mul(x_MD, self._gate.gelu(x_MD)))


class PackedRMSNorm(nn.Module):
    """Replaces an `RMSNorm`, with `1 + w` computed once."""

    def __init__(self, norm: RMSNorm):
        super().__init__()
        self._scale_D, self._eps = 1 + at_least_float32(norm.weight.detach()), norm.eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self._scale_D, self._eps)


class PackedQKVProjection(nn.Module):
    """Replaces a `QKVProjection`; `split` packs queries separately, as `last_query` needs."""

    def __init__(self, qkv: QKVProjection, make_kernel: KernelFactory, *, split: bool):
        super().__init__()
        weights = torch.split_with_sizes(qkv.weight, qkv.split_sizes) if split else [qkv.weight]
        self._kernels = [make_kernel(weight, None) for weight in weights]

    def forward(self, x: Tensor) -> Tensor:
        outputs = [kernel(x) for kernel in self._kernels]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)

    def last_query(self, x: Tensor) -> tuple[Tensor, Tensor]:
        query, key_value = self._kernels
        return query(x[:, -1:]), key_value(x)


class PackedLMHead(nn.Module):
    """Replaces an `LMHead`; the kernel has a copy of the weight."""

    def __init__(self, kernel: Callable[[Tensor], Tensor]):
        super().__init__()
        self._kernel = kernel

    def forward(self, x: Tensor, _embedding_VD: Tensor) -> Tensor:
        return self._kernel(x)


class MappedEmbedding(nn.Module):
    """Replaces the embedding if the LM head has a copy: looks up rows in a mapped file.

    The rows have the file's dtype and are converted to the model's. The rows in use take memory,
    as long as the system has room for them.
    """

    def __init__(self, mapped_VD: Tensor, dtype: torch.dtype):
        super().__init__()
        self.weight, self._dtype = mapped_VD, dtype

    def forward(self, token: Tensor) -> Tensor:
        return F.embedding(token, self.weight).to(self._dtype)


def run_in_blocks(mlp: Callable[[Tensor], Tensor], x: Tensor, inner_width: int) -> Tensor:
    """The output of `mlp` for (..., D), computed for one block of rows at a time.

    The blocks have nearly equal sizes and the shape (M, D), or (M, 1, D) in a decode step.
    """
    x_MD = x if is_decode(x) else x.flatten(0, -2)
    blocks = -(-len(x_MD) * inner_width * x.itemsize // BLOCK_BYTES)
    if blocks <= 1:
        return mlp(x_MD).view(*x.shape[:-1], -1)
    return torch.cat([mlp(block) for block in x_MD.tensor_split(blocks)]).view(*x.shape[:-1], -1)


def pack_encoder_layer(layer: SiglipEncoderLayer, make_kernel: KernelFactory) -> None:
    """Replace the modules of an encoder layer by packed ones; the old weights are freed."""
    attention = layer.self_attn
    attention.add_module("qkv_proj", PackedProjection(attention.qkv_proj, make_kernel))
    attention.add_module("out_proj", PackedProjection(attention.out_proj, make_kernel))
    layer.add_module("mlp", PackedMLP(layer.mlp, make_kernel))


def pack_decoder_layer(
    layer: GemmaDecoderLayer, make_kernel: KernelFactory, *, is_last: bool
) -> None:
    """Replace the modules of a decoder layer by packed ones; the old weights are freed."""
    attention = layer.self_attn
    qkv = PackedQKVProjection(attention.qkv_proj, make_kernel, split=is_last)
    attention.add_module("qkv_proj", qkv)
    attention.add_module("o_proj", PackedProjection(attention.o_proj, make_kernel))
    layer.add_module("mlp", PackedGatedMLP(layer.mlp, make_kernel))
    pack_norms(attention)
    pack_norms(layer)


def pack_norms(parent: nn.Module) -> None:
    """Replace the norms among the module's direct children."""
    for name, module in list(parent.named_children()):
        if isinstance(module, RMSNorm):
            parent.add_module(name, PackedRMSNorm(module))
