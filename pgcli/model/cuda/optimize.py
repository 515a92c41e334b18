"""Prepares a loaded model for inference on a GPU."""

from __future__ import annotations

import warnings

import torch
from torch import nn

from pgcli.model.cuda.check import kernel_problem
from pgcli.model.cuda.fused_gemma import FusedGemma
from pgcli.model.cuda.fused_siglip import FusedSiglip
from pgcli.model.gemma import GemmaDecoderLayer
from pgcli.model.paligemma import PaliGemma
from pgcli.model.quantized.gated_mlp import quantize_mlp


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
    """Replace the model's vision tower and decoder by fused ones, in place, on any device.

    The kernels of the decoder do not normalize queries and keys, so Gemma 3's is not fused.
    """
    model.add_module("vision", FusedSiglip(model.vision))
    if not model.config.decoder.qk_norm:
        model.add_module("decoder", FusedGemma(model.decoder))
