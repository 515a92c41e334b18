"""Weights of 8 bits: quantization, the MLPs, frozen weights under LoRA, and what can run them.

M rows of any kind · L slots · N output width · D input width
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import pgcli.model.cuda.operators  # noqa: F401, registers torch.ops.pgcli
from pgcli.model.compiler_errors import build_failure, raise_out_of_memory
from pgcli.model.config import DecoderConfig
from pgcli.model.gemma import GemmaDecoderLayer, GemmaMLP, QKVProjection, rms_norm
from pgcli.model.paligemma import PaliGemma
from pgcli.model.quantize import FLOAT8, quantize_per_channel, quantize_per_row

MIN_CAPABILITY = (8, 9)  # the first GPUs with float8 tensor cores
TOLERANCE = 0.1  # for an MLP's output; float8 rounds to a sixteenth
DROP = "drop <--quantize=>"
ROWS = (1, 8, 300)  # like steps of one and of a few rows, and a prefill
#: The shapes to try without a model.
SMALL = DecoderConfig(64, 1, 128, 4, 1, 16, vocab_size=1)


class QuantizedLinear(nn.Module):
    """A linear layer of float8 inputs and weights, with a weight scale for each output channel."""

    def __init__(self, weight_ND: Tensor):
        super().__init__()
        self.out_dtype = weight_ND.dtype
        self.quantized_ND: Tensor
        self.scale_N: Tensor
        quantized_ND, scale_N = quantize_per_channel(weight_ND, FLOAT8)
        self.register_buffer("quantized_ND", quantized_ND)
        self.register_buffer("scale_N", scale_N)

    def forward(self, quantized: Tensor, scale: Tensor) -> Tensor:
        """The product (..., N) of quantized inputs (..., D) with scales (..., 1) of rows."""
        out_MN = torch._scaled_mm(
            quantized.flatten(0, -2),
            self.quantized_ND.T,
            scale_a=scale.flatten(0, -2),
            scale_b=self.scale_N[None],
            out_dtype=self.out_dtype,
            use_fast_accum=True,  # the tensor cores' own accumulator, the usual choice
        )
        return out_MN.view(*quantized.shape[:-1], -1)


class QuantizedMLP(nn.Module):
    """Replaces a `GemmaMLP`; `forward_quantized` takes an already quantized input."""

    def __init__(self, mlp: GemmaMLP):
        super().__init__()
        self.gate_up_proj = QuantizedLinear(mlp.gate_up_proj.weight)
        self.down_proj = QuantizedLinear(mlp.down_proj.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_quantized(*quantize_per_row(x, FLOAT8))

    def forward_quantized(self, quantized: Tensor, scale: Tensor) -> Tensor:
        gate_up = self.gate_up_proj(quantized, scale)
        out: Tensor = self.down_proj(*torch.ops.pgcli.geglu_quantized(gate_up))
        return out


def quantize_mlps(model: PaliGemma) -> None:
    """Replace the decoder's MLPs, in place; the old weights are freed one by one.

    They are nine tenths of the decoder's products. Attention, the LM head and the vision tower
    are unchanged.
    """
    for layer in cast(Iterable[GemmaDecoderLayer], model.decoder.layers):
        quantize_mlp(layer)


def quantize_mlp(layer: GemmaDecoderLayer) -> None:
    """Replace a decoder layer's MLP, in place; the old weights are freed."""
    layer.add_module("mlp", QuantizedMLP(layer.mlp))


class _Int8Product(torch.autograd.Function):
    """`x @ weight.T` with a gradient for `x`; the weight in `x`'s dtype is not kept."""

    @staticmethod
    def forward(ctx: Any, x_MD: Tensor, quantized_ND: Tensor, scale_N: Tensor) -> Tensor:
        ctx.save_for_backward(quantized_ND, scale_N)
        return (F.linear(x_MD, quantized_ND.to(x_MD.dtype)) * scale_N).to(x_MD.dtype)

    @staticmethod
    def backward(ctx: Any, grad_MN: Tensor) -> tuple[Tensor, None, None]:
        quantized_ND, scale_N = ctx.saved_tensors
        scaled_MN = (grad_MN * scale_N).to(grad_MN.dtype)
        return scaled_MN @ quantized_ND.to(grad_MN.dtype), None, None


class Int8FrozenLinear(nn.Module):
    """Replaces a frozen linear layer without a bias."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        quantized_ND, scale_N = quantize_per_channel(linear.weight)
        self.register_buffer("quantized_ND", quantized_ND)
        self.register_buffer("scale_N", scale_N)

    def forward(self, x: Tensor) -> Tensor:
        product: Tensor = _Int8Product.apply(x, self.quantized_ND, self.scale_N)  # type: ignore[no-untyped-call]
        return product


class Int8FrozenQKVProjection(Int8FrozenLinear):
    """Replaces a `QKVProjection`."""

    def __init__(self, linear: QKVProjection):
        super().__init__(linear)
        self.split_sizes = linear.split_sizes

    def last_query(self, x_BLD: Tensor) -> tuple[Tensor, Tensor]:
        """`QKVProjection.last_query`, but with queries computed for all slots."""
        query, key_value = torch.split_with_sizes(self(x_BLD), self.split_sizes, dim=-1)
        return query[:, -1:], key_value


def freeze_in_int8(_model: PaliGemma, part: nn.Module) -> None:
    """Replace the linear layers of one of the model's `parts` by int8 ones, in place.

    Only the decoder's layers change: embedding, LM head and vision tower stay as they are.
    """
    if not isinstance(part, GemmaDecoderLayer):
        return
    attention, mlp = part.self_attn, part.mlp
    attention.add_module("qkv_proj", Int8FrozenQKVProjection(attention.qkv_proj))
    attention.add_module("o_proj", Int8FrozenLinear(attention.o_proj))
    mlp.add_module("gate_up_proj", Int8FrozenLinear(mlp.gate_up_proj))
    mlp.add_module("down_proj", Int8FrozenLinear(mlp.down_proj))


def quantization_problem(
    name: str, device: torch.device, dtype: torch.dtype, config: DecoderConfig = SMALL
) -> tuple[str, str] | None:
    """Why this device cannot quantize a model of this dtype, and a remedy; None if it can.

    `name` is "int8" or "fp8". On a GPU an MLP of the model's shapes is tried.
    """
    if config.qk_norm:
        return f"<--quantize {name}> is not measured for Gemma 3", DROP
    if name == "int8":
        if device.type != "cpu":
            is_cuda = device.type == "cuda"
            has_float8 = is_cuda and torch.cuda.get_device_capability(device) >= MIN_CAPABILITY
            remedy = f"use <--quantize fp8>, or {DROP}" if has_float8 else DROP
            return f"<--quantize int8> needs a CPU, but the model runs on {device}", remedy
        return None
    if device.type != "cuda":
        remedy = f"use <--quantize int8>, or {DROP}" if device.type == "cpu" else DROP
        return f"<--quantize fp8> needs an NVIDIA GPU, but the model runs on {device}", remedy
    capability = torch.cuda.get_device_capability(device)
    if capability < MIN_CAPABILITY:
        needed, has = (f"{major}.{minor}" for major, minor in (MIN_CAPABILITY, capability))
        problem = f"<--quantize fp8> needs compute capability {needed}, but {device} has {has}"
        return problem, DROP
    if dtype != torch.bfloat16:
        dtype_name = str(dtype).removeprefix("torch.")
        problem = f"<--quantize fp8> computes in bfloat16, not in {dtype_name}"
        return problem, "<--dtype bfloat16>"
    if problem := mlp_problem(device, dtype, config):
        message = f"<--quantize fp8> does not work on {device} with this PyTorch: {problem}"
        return message, DROP
    return None


@cache
@torch.inference_mode()
def mlp_problem(device: torch.device, dtype: torch.dtype, config: DecoderConfig) -> str:
    """Why a quantized MLP of these shapes is wrong or fails on this device; empty if it is right.

    A device may support the product only for some shapes.
    """

    generator = torch.Generator(device).manual_seed(0)
    with torch.device(device):
        mlp = GemmaMLP(config).to(dtype)
        for weight in mlp.parameters():
            weight.normal_(std=weight.shape[1] ** -0.5, generator=generator)
        scale_D = torch.ones(config.width)
    try:
        quantized = QuantizedMLP(mlp)
        for rows in ROWS:
            x = torch.randn(rows, config.width, generator=generator, device=device).to(dtype)
            expected = mlp(rms_norm(2 * x, scale_D, 1e-6)).float()
            norm = torch.ops.pgcli.residual_norm_quantized(x, x, None, scale_D, 1e-6)
            output = quantized.forward_quantized(*norm[1:]).float()
            distance = float((output - expected).norm() / expected.norm())
            if not distance < TOLERANCE:
                return f"the products are {distance:.0%} off"
    except Exception as error:  # noqa: BLE001, it becomes the reason in a message
        raise_out_of_memory(error)
        return build_failure(error)
    return ""
