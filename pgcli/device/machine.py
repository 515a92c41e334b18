"""The NVIDIA driver of this machine, and why PyTorch may not find its GPU."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

NVML = "libnvidia-ml.so.1"  # a part of the driver
DEVICES = Path("/dev")
DRIVER_FILE = Path("/proc/driver/nvidia/version")
# The oldest NVIDIA driver (Linux) for each major version of CUDA, by NVIDIA's table of minor
# version compatibility, and PyTorch's index of wheels that support this driver.
CUDA = {13: (580, "cu130"), 12: (525, "cu126"), 11: (450, "cu118")}
BFLOAT16_CAPABILITY = (8, 0)  # the first with bfloat16 in hardware; PyTorch emulates it
INDEX = "https://download.pytorch.org/whl/"


@dataclass(frozen=True, slots=True)
class GpuProblem:
    """Why a GPU cannot be used, and the command that fixes it.

    `is_intentional` means that the GPU is hidden by an environment variable.
    """

    reason: str
    remedy: str
    is_intentional: bool = False


def nvidia_driver() -> str | None:
    """The version of the NVIDIA driver, or None, even if PyTorch cannot use it."""
    try:
        match = re.search(r"\b(\d{3,}\.\d+[.\d]*)", DRIVER_FILE.read_text(encoding="utf-8"))
    except OSError:
        match = None
    return match[1] if match else next(iter(nvidia_smi("--query-gpu=driver_version")), None)


def nvidia_smi(query: str) -> list[str]:
    """The lines that `nvidia-smi` prints; an empty list if it is missing or fails."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [program, query, "--format=csv,noheader"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=2, check=True)
    except (OSError, ValueError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in output.stdout.splitlines() if line.strip()]


def gpu_has_bfloat16(torch: Any, device: Any) -> bool:
    """Whether the GPU multiplies bfloat16 in hardware."""
    return bool(torch.cuda.get_device_capability(device) >= BFLOAT16_CAPABILITY)


def visible_gpus() -> int:
    """The number of GPUs that PyTorch can use, counted without importing torch.

    A process can use one slice of a divided GPU (MIG), whatever the number of slices.
    """
    driver = nvidia_driver()
    built = None if driver is None else cuda_of_pytorch()
    if driver is None or built is None or _major(driver) < CUDA.get(built, (0, ""))[0]:
        return 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return installed_gpus() if visible is None else _count_visible(visible, installed_gpus())


def _count_visible(visible: str, installed: int) -> int:
    """How many of the installed GPUs CUDA_VISIBLE_DEVICES leaves: those before the first invalid
    entry, and none if an entry is repeated.
    """
    entries = [entry.strip() for entry in visible.split(",")]
    if entries[0].startswith("MIG-"):
        return min(1, installed)
    is_valid = [
        entry.startswith("GPU-") or (entry.isdecimal() and int(entry) < installed)
        for entry in entries
    ]
    valid = entries[: [*is_valid, False].index(False)]
    return min(len(valid), installed) if len({*valid}) == len(valid) else 0


@cache
def installed_gpus() -> int:
    """The number of GPUs that this process may open: by NVML, or else by their device files."""
    import ctypes

    count = ctypes.c_uint()
    try:
        nvml = ctypes.CDLL(NVML)
        if nvml.nvmlInit_v2() == 0:
            is_counted = nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0
            nvml.nvmlShutdown()
            if is_counted:
                return count.value
    except (OSError, AttributeError):  # a container may lack the library
        pass
    return len(_device_files())


def _device_files() -> list[Path]:
    return list(DEVICES.glob("nvidia[0-9]*"))


@cache
def cuda_of_pytorch() -> int | None:
    """The major version of CUDA that PyTorch is built for, read from one of PyTorch's files."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    match = re.search(r"^cuda\b.*=\s*'(\d+)", text, re.M)
    return int(match[1]) if match else None


def find_gpu_problem() -> GpuProblem | None:
    """Why PyTorch does not find the GPU; None if it does, or without an NVIDIA driver."""
    driver = nvidia_driver()
    if driver is None:
        return None
    import torch  # the rest of this file works without torch

    return None if torch.cuda.is_available() else diagnose_gpu(torch, driver)


def diagnose_gpu(torch: Any, driver: str) -> GpuProblem:
    """Why this PyTorch finds no GPU with the given version of the driver."""
    if torch.version.cuda is None:
        reason = f"an NVIDIA driver ({driver}), and a PyTorch built for the CPU only"
        return GpuProblem(reason, wheel_command(driver))
    least, _ = CUDA.get(int(torch.version.cuda.split(".")[0]), (0, ""))
    if _major(driver) < least:
        return GpuProblem(
            f"driver {driver} is too old for CUDA {torch.version.cuda}, which needs {least}",
            f"{wheel_command(driver)}; or install a newer driver",
        )
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1", "NoDevFiles"):
        reason = f"hidden by CUDA_VISIBLE_DEVICES={visible}"
        return GpuProblem(reason, "unset CUDA_VISIBLE_DEVICES", is_intentional=True)
    if not _device_files():
        reason = f"driver {driver} is loaded, but /dev/nvidia0 does not exist"
        return GpuProblem(
            reason, "in a container: docker run --gpus all ...; else nvidia-modprobe -u"
        )
    reason = f"driver {driver} supports CUDA {torch.version.cuda}, but no GPU responds"
    return GpuProblem(reason, "nvidia-smi; after an update of the driver, restart the machine")


def wheel_command(driver: str) -> str:
    """The command that installs the newest PyTorch that supports the driver."""
    index = next((index for least, index in CUDA.values() if _major(driver) >= least), "cu126")
    return f"{sys.executable} -m pip install --force-reinstall torch --index-url {INDEX}{index}"


def _major(driver: str) -> int:
    match = re.match(r"\d+", driver)
    return int(match[0]) if match else 0
