"""PyTorch and what it can run on: the GPU, its driver, the wheel that is installed, dtypes."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from pgcli.doctor.finding import Finding, bad, ok, warn

TORCH, GPU, DTYPES = "pytorch", "gpu", "dtypes"
DRIVER_FILE = Path("/proc/driver/nvidia/version")
# The oldest NVIDIA driver (Linux) for each major version of CUDA, by NVIDIA's table of minor
# version compatibility, and PyTorch's index of wheels that such a driver serves.
CUDA = {13: (580, "cu130"), 12: (525, "cu126"), 11: (450, "cu118")}
INDEX = "https://download.pytorch.org/whl/"


def findings() -> Iterator[Finding]:
    """PyTorch itself, the GPU, and the dtypes that are fast here."""
    driver = nvidia_driver()
    torch = imported()
    if isinstance(torch, Finding):
        yield torch
        if driver is not None:
            yield warn(
                GPU, f"an NVIDIA GPU, driver {driver}, which no PyTorch uses", _wheel(driver)
            )
        return
    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "the CPU only"
    yield ok(TORCH, f"{torch.__version__}, built for {built}, {torch.get_num_threads()} threads")
    yield gpu(torch, driver)
    yield dtypes(torch)


def imported() -> ModuleType | Finding:
    """PyTorch, when it has computed something; a finding where it is missing or broken."""
    again = f"{sys.executable} -m pip install --force-reinstall torch"
    try:
        import torch

        if torch.ones(2, 2).mm(torch.ones(2, 2)).sum().item() != 8:
            return bad(TORCH, "it computes wrong results", again)
    except ImportError as missing:
        if getattr(missing, "name", None) == "torch":
            return bad(TORCH, "not installed", f"{sys.executable} -m pip install torch")
        return bad(TORCH, f"cannot be imported: {_first_line(missing)}", again)
    except (OSError, RuntimeError, AttributeError, TypeError, ValueError) as broken:
        return bad(TORCH, f"is broken: {_first_line(broken)}", again)
    module: ModuleType = torch
    return module


def nvidia_driver() -> str | None:
    """The version of the NVIDIA driver, whether or not PyTorch can use it; None without one."""
    try:
        found = re.search(r"\b(\d{3,}\.\d+[.\d]*)", DRIVER_FILE.read_text(encoding="utf-8"))
    except OSError:
        found = None
    if found:
        return found[1]
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    question = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        told = subprocess.run(question, capture_output=True, text=True, timeout=2, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return next(iter(told.stdout.split()), None)


def gpu(torch: Any, driver: str | None) -> Finding:
    """The GPU that a run would use; or why there is one and it cannot be used."""
    if torch.cuda.is_available():
        return _usable(torch)
    if driver is not None:
        return _unusable(torch, driver)
    if sys.platform == "darwin":
        return _apple(torch)
    if torch.version.cuda:
        found = f"none: no NVIDIA driver, and a PyTorch for CUDA {torch.version.cuda}"
        return ok(GPU, f"{found}; the CPU serves")
    return ok(GPU, "none; the CPU serves")


def _usable(torch: Any) -> Finding:
    count = torch.cuda.device_count()
    parts = torch.cuda.get_device_properties(0)
    found = f"{count} x {parts.name}, {parts.total_memory / 1e9:.0f} GB"
    try:
        torch.ones(8, device="cuda").sum().item()
    except RuntimeError as error:  # an architecture that the wheel has no kernels for, or no memory
        driver = nvidia_driver() or ""
        return bad(GPU, f"{found}, cannot compute: {_first_line(error)}", _wheel(driver))
    free, total = torch.cuda.mem_get_info(0)
    found += f", {free / 1e9:.0f} GB free"
    if free < total / 2:
        return warn(GPU, f"{found}: another program holds the rest", "nvidia-smi shows which")
    return ok(GPU, found)


def _unusable(torch: Any, driver: str) -> Finding:
    if torch.version.cuda is None:
        found = f"an NVIDIA driver ({driver}), and a PyTorch built for the CPU only"
        return bad(GPU, found, _wheel(driver))
    least, _ = CUDA.get(int(torch.version.cuda.split(".")[0]), (0, ""))
    if _major(driver) < least:
        return bad(
            GPU,
            f"driver {driver} is too old for CUDA {torch.version.cuda}, which needs {least}",
            f"{_wheel(driver)}; or install a newer driver",
        )
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1", "NoDevFiles"):
        return warn(GPU, f"hidden by CUDA_VISIBLE_DEVICES={visible}", "unset CUDA_VISIBLE_DEVICES")
    if not list(Path("/dev").glob("nvidia[0-9]*")):
        found = f"driver {driver} is loaded, and no /dev/nvidia0 to reach it by"
        return bad(GPU, found, "in a container: docker run --gpus all ...; else nvidia-modprobe -u")
    found = f"driver {driver} and CUDA {torch.version.cuda} should serve, and no GPU answers"
    return bad(GPU, found, "nvidia-smi; after an update of the driver, restart the machine")


def _wheel(driver: str) -> str:
    """The command that installs the newest PyTorch that the driver serves."""
    index = next((index for least, index in CUDA.values() if _major(driver) >= least), "cu126")
    return f"{sys.executable} -m pip install --force-reinstall torch --index-url {INDEX}{index}"


def _major(driver: str) -> int:
    found = re.match(r"\d+", driver)
    return int(found[0]) if found else 0


def _apple(torch: Any) -> Finding:
    if torch.backends.mps.is_available():
        return ok(GPU, "Apple's, as mps")
    if platform.machine() != "arm64":
        return warn(
            GPU,
            "none: an Intel Mac, or a Python for Intel on Apple's processor",
            "on Apple's processor: uv venv --python cpython-3.12-macos-aarch64",
        )
    return warn(GPU, "Apple's, and this PyTorch cannot use it", "softwareupdate --install --all")


def dtypes(torch: Any) -> Finding:
    """In which numbers a run will compute, where `--dtype auto` chooses."""
    if torch.cuda.is_available():
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return ok(DTYPES, "bfloat16 on the GPU")
        found = "this GPU has no bfloat16: float32, at twice the memory"
        return warn(DTYPES, found, "pgcli info MODEL says whether a model fits")
    if torch.backends.mps.is_available():
        if torch.backends.mps.is_macos_or_newer(14, 0):
            return ok(DTYPES, "bfloat16 on Apple's GPU")
        found = "bfloat16 needs macOS 14: float32, at twice the memory"
        return warn(DTYPES, found, "softwareupdate --install --all")
    amx, avx = torch.cpu._is_amx_tile_supported(), torch.cpu._is_avx512_bf16_supported()
    if amx or avx:
        return ok(DTYPES, f"bfloat16 on the CPU ({'AMX' if amx else 'AVX512-BF16'}), float32")
    found = "this CPU has no bfloat16 in hardware: float32, at twice the memory"
    return warn(DTYPES, found, "--dtype bfloat16 where memory is short: slower, and half as much")


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
