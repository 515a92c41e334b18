"""Which devices multiply 8-bit values, and why others do not."""

from __future__ import annotations

from functools import cache

import torch

from pgcli.model.compiler_errors import raise_out_of_memory
from pgcli.model.config import DecoderConfig
from pgcli.model.cpu.optimize import supports_int8
from pgcli.model.gemma import GemmaMLP, rms_norm
from pgcli.printable import first_line

MIN_CAPABILITY = (8, 9)  # of the first GPUs whose tensor cores multiply float8
TOLERANCE = 0.1  # of an MLP's output; float8 rounds to a sixteenth
ROWS = (20, 300)  # as of a step and of a prefill
#: The shapes that are tried where no model is known.
SMALL = DecoderConfig(64, 1, 128, 4, 1, 16, vocab_size=1)


def quantization_problem(
    name: str, device: torch.device, dtype: torch.dtype, config: DecoderConfig = SMALL
) -> tuple[str, str] | None:
    """Why a model of this dtype cannot be quantized on this device, and a remedy; None if it can.

    `name` is "int8" or "fp8". On a GPU an MLP of the model's shapes is computed.
    """
    if name == "int8":
        if device.type != "cpu":
            is_cuda = device.type == "cuda"
            has_float8 = is_cuda and torch.cuda.get_device_capability(device) >= MIN_CAPABILITY
            remedy = "<--quantize fp8>, or leave it out" if has_float8 else "leave it out"
            return f"<--quantize int8> is for CPUs, and the model would run on {device}", remedy
        if supports_int8(dtype):
            return None
        problem = "this build of PyTorch does not support int8 matrix multiplication on this CPU"
        return problem, "leave <--quantize=> out"
    if device.type != "cuda":
        remedy = "<--quantize int8>, or leave it out" if device.type == "cpu" else "leave it out"
        return f"<--quantize fp8> is for NVIDIA GPUs, and the model would run on {device}", remedy
    capability = torch.cuda.get_device_capability(device)
    if capability < MIN_CAPABILITY:
        needed, has = (f"{major}.{minor}" for major, minor in (MIN_CAPABILITY, capability))
        problem = f"<--quantize fp8> needs compute capability {needed}, and {device} has {has}"
        return problem, "leave it out"
    if dtype != torch.bfloat16:
        dtype_name = str(dtype).removeprefix("torch.")
        problem = f"<--quantize fp8> computes in bfloat16, and the dtype is {dtype_name}"
        return problem, "<--dtype bfloat16>"
    if problem := mlp_problem(device, dtype, config):
        message = f"<--quantize fp8> does not work on {device} with this PyTorch: {problem}"
        return message, "leave it out"
    return None


@cache
@torch.inference_mode()
def mlp_problem(device: torch.device, dtype: torch.dtype, config: DecoderConfig) -> str:
    """Why a quantized MLP of these shapes is wrong or fails on this device; empty if it is right.

    A device may have the product of some shapes only.
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
                return f"products are {distance:.0%} off"
    except Exception as error:  # noqa: BLE001, it becomes the reason of a refusal
        raise_out_of_memory(error)
        return first_line(error)
    return ""
