"""The NVIDIA driver of this machine, and why PyTorch may find no GPU beside it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DRIVER_FILE = Path("/proc/driver/nvidia/version")
# The oldest NVIDIA driver (Linux) for each major version of CUDA, by NVIDIA's table of minor
# version compatibility, and PyTorch's index of wheels that such a driver serves.
CUDA = {13: (580, "cu130"), 12: (525, "cu126"), 11: (450, "cu118")}
INDEX = "https://download.pytorch.org/whl/"


@dataclass(frozen=True, slots=True)
class Unused:
    """Why a GPU that is there cannot be used, and the command that mends it.

    `is_meant` says that somebody has hidden it on purpose.
    """

    found: str
    remedy: str
    is_meant: bool = False


def nvidia_driver() -> str | None:
    """The version of the NVIDIA driver, whether or not PyTorch can use it; None without one."""
    try:
        found = re.search(r"\b(\d{3,}\.\d+[.\d]*)", DRIVER_FILE.read_text(encoding="utf-8"))
    except OSError:
        found = None
    return found[1] if found else next(iter(nvidia_smi("--query-gpu=driver_version")), None)


def nvidia_smi(question: str) -> list[str]:
    """The lines that NVIDIA's own program answers; none where it is not there or does not know."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [program, question, "--format=csv,noheader"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=2, check=True)
    except (OSError, ValueError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in told.stdout.splitlines() if line.strip()]


def unused_gpu() -> Unused | None:
    """Why PyTorch uses no GPU though there is one; None where it does, or there is none."""
    import torch  # the rest works where it is broken, too

    if torch.cuda.is_available():
        return None
    driver = nvidia_driver()
    return None if driver is None else unused(torch, driver)


def unused(torch: Any, driver: str) -> Unused:
    """Why this PyTorch finds no GPU beside such a driver."""
    if torch.version.cuda is None:
        found = f"an NVIDIA driver ({driver}), and a PyTorch built for the CPU only"
        return Unused(found, wheel(driver))
    least, _ = CUDA.get(int(torch.version.cuda.split(".")[0]), (0, ""))
    if _major(driver) < least:
        return Unused(
            f"driver {driver} is too old for CUDA {torch.version.cuda}, which needs {least}",
            f"{wheel(driver)}; or install a newer driver",
        )
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1", "NoDevFiles"):
        found = f"hidden by CUDA_VISIBLE_DEVICES={visible}"
        return Unused(found, "unset CUDA_VISIBLE_DEVICES", is_meant=True)
    if not list(Path("/dev").glob("nvidia[0-9]*")):
        found = f"driver {driver} is loaded, and no /dev/nvidia0 to reach it by"
        return Unused(found, "in a container: docker run --gpus all ...; else nvidia-modprobe -u")
    found = f"driver {driver} and CUDA {torch.version.cuda} should serve, and no GPU answers"
    return Unused(found, "nvidia-smi; after an update of the driver, restart the machine")


def wheel(driver: str) -> str:
    """The command that installs the newest PyTorch that the driver serves."""
    index = next((index for least, index in CUDA.values() if _major(driver) >= least), "cu126")
    return f"{sys.executable} -m pip install --force-reinstall torch --index-url {INDEX}{index}"


def _major(driver: str) -> int:
    found = re.match(r"\d+", driver)
    return int(found[0]) if found else 0
