"""Which devices multiply 8-bit values, and why others do not."""

from __future__ import annotations

from functools import cache

import torch
from torch.nn import functional as F

from pgcli.model.compiler_errors import raise_out_of_memory
from pgcli.model.config import DecoderConfig
from pgcli.model.cpu.optimize import supports_int8
from pgcli.model.gemma import GemmaMLP, rms_norm
from pgcli.printable import first_line

MIN_CAPABILITY = (8, 9)  # of the first GPUs whose tensor cores multiply float8
TOLERANCE = 0.1  # of an MLP's output; float8 rounds to a sixteenth


def quantization_problem(
    name: str, device: torch.device, dtype: torch.dtype
) -> tuple[str, str] | None:
    """Why a model of this dtype cannot be quantized on this device, and a remedy; None if it can.

    `name` is "int8" or "fp8". On a GPU small products are computed.
    """
    if name == "int8":
        if device.type != "cpu":
            is_cuda = device.type == "cuda"
            has_float8 = is_cuda and torch.cuda.get_device_capability(device) >= MIN_CAPABILITY
            remedy = "--quantize fp8, or leave it out" if has_float8 else "leave it out"
            return f"--quantize int8 is for CPUs, and the model would run on {device}", remedy
        if supports_int8(dtype):
            return None
        problem = "this build of PyTorch does not support int8 matrix multiplication on this CPU"
        return problem, "leave --quantize out"
    if device.type != "cuda":
        remedy = "--quantize int8, or leave it out" if device.type == "cpu" else "leave it out"
        return f"--quantize fp8 is for NVIDIA GPUs, and the model would run on {device}", remedy
    capability = torch.cuda.get_device_capability(device)
    if capability < MIN_CAPABILITY:
        needed, has = (f"{major}.{minor}" for major, minor in (MIN_CAPABILITY, capability))
        problem = f"--quantize fp8 needs compute capability {needed}, and {device} has {has}"
        return problem, "leave it out"
    if dtype != torch.bfloat16:
        dtype_name = str(dtype).removeprefix("torch.")
        problem = f"--quantize fp8 computes in bfloat16, and the dtype is {dtype_name}"
        return problem, "--dtype bfloat16"
    if problem := mlp_problem(device, dtype):
        message = f"--quantize fp8 does not work on {device} with this PyTorch: {problem}"
        return message, "leave it out"
    return None


@cache
@torch.inference_mode()
def mlp_problem(device: torch.device, dtype: torch.dtype) -> str:
    """Why a small quantized MLP is wrong or fails on this device; empty if it is right."""
    from pgcli.model.quantized.gated_mlp import QuantizedMLP

    config = DecoderConfig(64, 1, 128, 4, 1, 16, vocab_size=1)
    with torch.device("cpu"):
        generator = torch.Generator().manual_seed(0)
        mlp = GemmaMLP(config)
        for weight in mlp.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) / weight.shape[1] ** 0.5)
        x = torch.randn(20, config.width, generator=generator)
    scale_D = torch.ones(config.width)
    expected = mlp(rms_norm(2 * x, scale_D, 1e-6))
    mlp, x, scale_D = mlp.to(device, dtype), x.to(device, dtype), scale_D.to(device)
    try:
        norm = torch.ops.pgcli.residual_norm_quantized(x, x, None, scale_D, 1e-6)
        output = QuantizedMLP(mlp).forward_quantized(*norm[1:]).cpu()
    except Exception as error:  # noqa: BLE001, it becomes the reason of a refusal
        raise_out_of_memory(error)
        return first_line(error)
    distance = F.mse_loss(output.float(), expected).sqrt() / expected.square().mean().sqrt()
    return "" if float(distance) < TOLERANCE else f"products are {float(distance):.0%} off"
