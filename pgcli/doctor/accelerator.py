"""Checks PyTorch, the GPU, its driver, the installed wheel and dtypes."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from pgcli.device.nvidia_driver import (
    diagnose_gpu,
    gpu_has_bfloat16,
    nvidia_driver,
    wheel_command,
)
from pgcli.doctor.finding import Finding, bad, ok, warn
from pgcli.text import byte_count, count, first_line

TORCH, GPU, KERNELS, DTYPES = "pytorch", "gpu", "kernels", "dtypes"


def accelerator_findings() -> Iterator[Finding]:
    """The findings about PyTorch, the GPU and the dtypes."""
    driver = nvidia_driver()
    torch = imported()
    if isinstance(torch, Finding):
        yield torch
        if driver is not None:
            yield warn(
                GPU,
                f"an NVIDIA GPU, driver {driver}, without PyTorch to use it",
                wheel_command(driver),
            )
        return
    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "the CPU only"
    yield ok(TORCH, f"{torch.__version__}, built for {built}, {torch.get_num_threads()} threads")
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            yield (finding := gpu(torch, index))
            if finding.state != "bad":
                yield kernels(index)
        return
    yield no_gpu(torch, driver)
    yield dtypes(torch)


def imported() -> ModuleType | Finding:
    """PyTorch, if it is installed and computes correctly; else a finding."""
    reinstall = f"{sys.executable} -m pip install --force-reinstall torch"
    try:
        import torch

        if torch.ones(2, 2).mm(torch.ones(2, 2)).sum().item() != 8:
            return bad(TORCH, "computes wrong results", reinstall)
    except ImportError as missing:
        if getattr(missing, "name", None) == "torch":
            return bad(TORCH, "not installed", f"{sys.executable} -m pip install torch")
        return bad(TORCH, f"cannot be imported: {first_line(missing)}", reinstall)
    except (OSError, RuntimeError, AttributeError, TypeError, ValueError) as broken:
        return bad(TORCH, f"is broken: {first_line(broken)}", reinstall)
    module: ModuleType = torch
    return module


def gpu(torch: Any, index: int) -> Finding:
    """A GPU, the dtype that runs choose on it, and the batch size of a 3b model."""
    properties = torch.cuda.get_device_properties(index)
    total = properties.total_memory
    name = f"cuda:{index}, {properties.name}, {byte_count(total)}"
    try:
        torch.ones(8, device=f"cuda:{index}").sum().item()
    except RuntimeError as error:  # no kernels for this architecture in the wheel, or no memory
        remedy = wheel_command(nvidia_driver() or "")
        return bad(GPU, f"{name}, cannot compute: {first_line(error)}", remedy)
    free, _ = torch.cuda.mem_get_info(index)
    has_bfloat16 = gpu_has_bfloat16(torch, index)
    rows = rows_of_3b(2 if has_bfloat16 else 4, free)
    dtype = "bfloat16" if has_bfloat16 else "no bfloat16: float32, at twice the memory"
    description = f"{name}, {byte_count(free)} free, {dtype}, " + (
        f"{count(rows, 'image')} at once with a 3b model" if rows else "too small for a 3b model"
    )
    if free < total / 2:
        return warn(GPU, f"{description}; other programs use the rest", "nvidia-smi shows which")
    if not has_bfloat16:
        return warn(GPU, description, "--dtype float16 halves the memory of PaliGemma 1")
    return ok(GPU, description)


def kernels(index: int) -> Finding:
    """Whether Triton builds and runs kernels on a GPU, with one as an example."""
    from torch import device

    from pgcli.model.compiler_errors import INSTALL_COMPILER
    from pgcli.model.cuda.check import triton_problem

    if problem := triton_problem(device("cuda", index)):
        description = f"cuda:{index}, Triton builds none, so models are slower: {problem}"
        is_there = find_spec("triton") is not None
        pip = f"{sys.executable} -m pip install triton"
        return warn(KERNELS, description, INSTALL_COMPILER if is_there else pip)
    return ok(KERNELS, f"cuda:{index}, Triton builds and runs them")


def rows_of_3b(itemsize: int, free: int) -> int:
    """The automatic batch size of PaliGemma 3b at 224; 0 if it does not fit."""
    from pgcli.engine.memory import MemoryBudget, largest_batch, parameters
    from pgcli.model.config import DecoderConfig, PaliGemmaConfig, VisionConfig

    vision = VisionConfig(1152, 27, 4304, 16, patch_size=14, resolution=224)
    decoder = DecoderConfig(2048, 18, 16384, 8, 1, 256, vocab_size=257216)
    config = PaliGemmaConfig(vision, decoder, image_token_id=257152)
    remaining = free - itemsize * parameters(config)
    if not largest_batch(config, itemsize=itemsize, device="cuda", remaining=remaining):
        return 0
    return MemoryBudget(config, itemsize, "cuda", remaining).batch_size()


def no_gpu(torch: Any, driver: str | None) -> Finding:
    """Why no NVIDIA GPU is usable."""
    if driver is not None:
        trouble = diagnose_gpu(torch, driver)
        return (warn if trouble.is_intentional else bad)(GPU, trouble.reason, trouble.remedy)
    if sys.platform == "darwin":
        return _apple(torch)
    if torch.version.cuda:
        description = f"none: no NVIDIA driver, and a PyTorch for CUDA {torch.version.cuda}"
        return ok(GPU, f"{description}; runs use the CPU")
    return ok(GPU, "none; runs use the CPU")


def _apple(torch: Any) -> Finding:
    if torch.backends.mps.is_available():
        return ok(GPU, "Apple GPU, as mps")
    if platform.machine() != "arm64":
        return warn(
            GPU,
            "none: an Intel Mac, or a Python for Intel on Apple silicon",
            "on Apple silicon: uv venv --python cpython-3.12-macos-aarch64",
        )
    return warn(GPU, "Apple GPU, not supported here by PyTorch", "softwareupdate --install --all")


def dtypes(torch: Any) -> Finding:
    """How this machine multiplies weights of each dtype without an NVIDIA GPU."""
    if torch.backends.mps.is_available():
        if torch.backends.mps.is_macos_or_newer(14, 0):
            return ok(DTYPES, "bfloat16 on the Apple GPU")
        description = "bfloat16 needs macOS 14: float32, at twice the memory"
        return warn(DTYPES, description, "softwareupdate --install --all")
    from pgcli.model.cpu.optimize import describe_processor  # only if torch can be imported

    return ok(DTYPES, f"on the CPU, {describe_processor()}")
