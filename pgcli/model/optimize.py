"""Prepares a loaded model for inference on its device.

float16 is for PaliGemma 1 on GPUs without bfloat16. Its largest value is 65,504, which Gemma's
hidden states and the products inside its MLPs may exceed. Both are computed 64 times smaller: a
power of two changes no digits, and the norm of a layer's input does not depend on the scale.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import nn

from pgcli.errors import InvalidCheckpoint
from pgcli.model.config import PaliGemmaConfig
from pgcli.model.cpu.optimize import optimize_part_for_cpu
from pgcli.model.gemma import GemmaDecoderLayer, RMSNorm
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


SCALE = 2.0**-6


def float16_problem(config: PaliGemmaConfig) -> str:
    """Why a model cannot run in float16; empty if it can."""
    if config.decoder.qk_norm:
        return "float16 is too narrow for the activations of Gemma 3"
    if config.vector_size is not None:
        return "float16 is not tested for ColPali"
    if config.decoder.post_norms:
        return "float16 is not tested for PaliGemma 2, where activations may overflow"
    return ""


def scale_for_float16(model: PaliGemma) -> None:
    """Scale the decoder's weights in place, so that its activations are far from 65,504.

    Image features, embeddings and the outputs of `o_proj` and `down_proj` make up the residual
    stream: each is multiplied by `SCALE`. `down_proj` itself is unchanged, because `up` is scaled,
    and with it the product that `down_proj` reads. From now on the layers' outputs are watched, so
    that `overflow_named` can name the layer with the first overflow.
    """
    for part in model.parts():
        scale_part_for_float16(model, part)


@torch.no_grad()
def scale_part_for_float16(model: PaliGemma, part: nn.Module) -> None:
    """`scale_for_float16` for one of the model's `parts`; the last part is the model."""
    decoder = model.decoder
    if isinstance(part, GemmaDecoderLayer):
        part.self_attn.o_proj.weight.mul_(SCALE)
        _, up_HD = part.mlp.gate_up_proj.weight.chunk(2)
        up_HD.mul_(SCALE)
    for module in (decoder if part is model else part).children():
        if isinstance(module, RMSNorm):
            module.eps *= SCALE**2
    if part is not model:
        return
    decoder.config = replace(decoder.config, norm_eps=decoder.config.norm_eps * SCALE**2)
    decoder.residual_scale = SCALE
    for weight in model.projector.parameters():
        weight.mul_(SCALE)
    device = model.projector.weight.device
    decoder.peak_L = torch.zeros(1 + decoder.config.depth, device=device)


@contextmanager
def overflow_named(model: PaliGemma) -> Iterator[None]:
    """A block in which a NaN of a watched model raises an error that names its first layer."""
    try:
        yield
    except InvalidCheckpoint as problem:
        peak_L = model.decoder.peak_L
        if peak_L is None or bool(peak_L.isfinite().all()):
            raise
        first = int(peak_L.isfinite().int().argmin())
        place = f"layer {first} of the decoder" if first else "image features or embeddings"
        raise InvalidCheckpoint(
            f"float16 is too narrow for this model: values overflow in {place}",
            hint="<--dtype float32>",
        ) from problem
