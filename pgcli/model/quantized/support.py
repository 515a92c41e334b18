"""Checks whether a device can multiply 8-bit values, and why not."""

from __future__ import annotations

from functools import cache

import torch

from pgcli.model.compiler_errors import build_failure, raise_out_of_memory
from pgcli.model.config import DecoderConfig
from pgcli.model.gemma import GemmaMLP, rms_norm

MIN_CAPABILITY = (8, 9)  # the first GPUs with float8 tensor cores
TOLERANCE = 0.1  # for an MLP's output; float8 rounds to a sixteenth
DROP = "drop <--quantize=>"
ROWS = (1, 8, 300)  # like steps of one and of a few rows, and a prefill
#: The shapes to try without a model.
SMALL = DecoderConfig(64, 1, 128, 4, 1, 16, vocab_size=1)


def quantization_problem(
    name: str, device: torch.device, dtype: torch.dtype, config: DecoderConfig = SMALL
) -> tuple[str, str] | None:
    """Why this device cannot quantize a model of this dtype, and a remedy; None if it can.

    `name` is "int8" or "fp8". On a GPU an MLP of the model's shapes is tried.
    """
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
    from pgcli.model.quantized.gated_mlp import QuantizedMLP

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
