"""Replaces a loaded model's linear layers by the fastest ones that its CPU has."""

from __future__ import annotations

import torch

from pgcli.model.classifier import ImageClassifier
from pgcli.model.cpu.malloc import keep_freed_memory
from pgcli.model.cpu.packed_linear import KernelFactory, PackedLinearKernel, can_pack
from pgcli.model.cpu.packed_modules import PackedLMHead, pack_encoder, pack_weights
from pgcli.model.paligemma import PaliGemma
from pgcli.model.quantized.cpu_linear import Int8DecodeLinearKernel, Int8LinearKernel, can_quantize
from pgcli.model.two_towers import TwoTowers


def optimize_for_cpu(model: PaliGemma, quantize: str = "none") -> None:
    """Pack the model's weights for its CPU, in place. On a GPU nothing changes.

    With `quantize` "int8" the decoder's layers and the LM head are quantized, the layers for decode
    steps only where prefill is faster in bfloat16.
    """
    weight = model.projector.weight
    if weight.device.type != "cpu":
        return
    keep_freed_memory()
    if not can_pack(weight.dtype):
        return
    if quantize != "int8":
        pack_weights(model, PackedLinearKernel, PackedLinearKernel)
        return
    kernel: KernelFactory = (
        Int8DecodeLinearKernel if prefills_in_bf16(weight.dtype) else Int8LinearKernel
    )
    pack_weights(model, PackedLinearKernel, kernel)
    _quantize_lm_head(model)


def optimize_encoders_for_cpu(model: TwoTowers | ImageClassifier) -> None:
    """Pack the weights of both towers' layers for the CPU, in place. On a GPU nothing changes."""
    weight = model.vision.post_layernorm.weight
    if weight.device.type != "cpu":
        return
    keep_freed_memory()
    if not can_pack(weight.dtype):
        return
    pack_encoder(model.vision.layers, PackedLinearKernel)
    if isinstance(model, TwoTowers) and model.text is not None:
        pack_encoder(model.text.layers, PackedLinearKernel)


def _quantize_lm_head(model: PaliGemma) -> None:
    decoder = model.decoder
    weight_VD = decoder.lm_head.weight
    kernel = Int8LinearKernel(decoder.embed_tokens.weight if weight_VD is None else weight_VD)
    decoder.add_module("lm_head", PackedLMHead(kernel.forward_fp32))


def supports_int8(dtype: torch.dtype) -> bool:
    """Whether `optimize_for_cpu` can quantize a model of this dtype on this CPU."""
    return can_pack(dtype) and can_quantize(dtype)


def packed_bytes(weight_bytes: int, dtype: torch.dtype, quantize: str) -> int:
    """The memory that weights of `weight_bytes` take after `optimize_for_cpu`."""
    keeps_both = quantize == "int8" and prefills_in_bf16(dtype)
    return weight_bytes * 3 // 2 if keeps_both else weight_bytes


def prefills_in_bf16(dtype: torch.dtype) -> bool:
    """Whether int8 is for decode steps only, as bfloat16 tiles (AMX) make prefill faster."""
    return dtype == torch.bfloat16 and torch.cpu._is_amx_tile_supported()
