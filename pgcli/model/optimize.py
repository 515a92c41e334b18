"""Prepares a loaded model for inference on its device."""

from __future__ import annotations

import torch

from pgcli.model.cpu.optimize import optimize_for_cpu
from pgcli.model.float16 import scale_for_float16
from pgcli.model.paligemma import PaliGemma


def optimize_for_device(model: PaliGemma, quantize: str = "none") -> None:
    """Replace the model's parts by the fastest that its device has, in place.

    On the CPU weights are packed, and quantized if `quantize` is "int8"; on CUDA the tower and the
    decoder are fused, and the decoder's MLPs are quantized if it is "fp8". Elsewhere nothing
    changes. In float16 the decoder is scaled first.
    """
    if model.projector.weight.dtype == torch.float16:
        scale_for_float16(model)
    device = model.projector.weight.device.type
    if device == "cpu":
        optimize_for_cpu(model, quantize)
    elif device == "cuda":
        from pgcli.model.cuda.optimize import optimize_for_cuda

        optimize_for_cuda(model, quantize)
