"""Prepares a loaded model for inference on its device."""

from __future__ import annotations

import torch
from torch import nn

from pgcli.model.cpu.optimize import optimize_part_for_cpu
from pgcli.model.float16 import scale_part_for_float16
from pgcli.model.paligemma import PaliGemma


def optimize_for_device(model: PaliGemma, quantize: str = "none") -> None:
    """Apply `optimize_part` to all parts of a loaded model."""
    for part in model.parts():
        optimize_part(model, part, quantize)


def optimize_part(model: PaliGemma, part: nn.Module, quantize: str = "none") -> None:
    """Replace one of the model's `parts` by the fastest that its device supports, in place.

    On the CPU weights are packed, and quantized if `quantize` is "int8"; on CUDA the tower and the
    decoder are fused, and the decoder's MLPs are quantized if it is "fp8". Other devices change
    nothing. In float16 the decoder is scaled first. The embedding must be loaded.
    """
    embedding_VD = model.decoder.embed_tokens.weight
    if next(part.parameters(), embedding_VD).dtype == torch.float16:
        scale_part_for_float16(model, part)
    device = embedding_VD.device.type
    if device == "cpu":
        optimize_part_for_cpu(model, part, quantize)
    elif device == "cuda":
        from pgcli.model.cuda.optimize import optimize_part_for_cuda

        optimize_part_for_cuda(model, part, quantize)
