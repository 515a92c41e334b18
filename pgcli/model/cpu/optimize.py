"""Replaces a loaded model's linear layers by the fastest that its CPU supports."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from contextlib import suppress
from typing import cast

import torch
from torch import nn

from pgcli.model.cpu.linear_kernels import (
    CompactInt8LinearKernel,
    CompactLinearKernel,
    Int8DecodeLinearKernel,
    Int8LinearKernel,
    PackedLinearKernel,
)
from pgcli.model.cpu.packed_modules import (
    CompactProjection,
    PackedLMHead,
    pack_decoder_layer,
    pack_encoder_layer,
    pack_norms,
)
from pgcli.model.cpu.processor import KernelFactory, has_bfloat16, has_tiles, works
from pgcli.model.gemma import GemmaDecoderLayer, LMHead
from pgcli.model.paligemma import PaliGemma
from pgcli.model.siglip import ImageClassifier, SiglipEncoderLayer
from pgcli.model.two_towers import TwoTowers

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # parameters of glibc's mallopt
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
