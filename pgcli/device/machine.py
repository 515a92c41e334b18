"""This machine: limits of its control groups, its NVIDIA driver, and processes that decode."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import Any

GROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
UNLIMITED = 2**60  # version 1 says "no limit" by a number of pages close to 2**63


def memory_left() -> int | None:
    """Bytes left before the limit of a control group; None without a limit.

    The smallest over the process's own group and its ancestors. File cache counts as free, because
    the kernel reclaims it.
    """
    remaining = []
    for folder in _groups("memory"):
        limit = _number(folder / "memory.max", folder / "memory.limit_in_bytes")
        used = _number(folder / "memory.current", folder / "memory.usage_in_bytes")
        if limit is not None and used is not None and limit < UNLIMITED:
            remaining.append(max(0, limit - max(0, used - _file_cache(folder))))
    return min(remaining, default=None)


def processors() -> float:
    """The number of CPUs that this process may use, possibly a fraction."""
    try:
        count: float = len(os.sched_getaffinity(0))
    except AttributeError:
        count = os.cpu_count() or 1
    return min([count, *_quotas()])


def _quotas() -> Iterator[float]:
    for folder in _groups("cpu"):
        # "200000 100000" is two CPUs, "max 100000" no limit; version 1 has a file for each number
        quota = _words(folder / "cpu.max") or [
            *_words(folder / "cpu.cfs_quota_us"),
            *_words(folder / "cpu.cfs_period_us"),
        ]
        if len(quota) == 2 and all(map(str.isdigit, quota)) and int(quota[1]):
            yield int(quota[0]) / int(quota[1])


def _groups(controller: str) -> Iterator[Path]:
    """The folders of this process's control groups, from its own up to the root."""
    for line in _text(MEMBERSHIP).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        # version 2 has one tree without a name, version 1 one for each controller
        root = GROUPS / controller if controllers else GROUPS
        # in a container the group may be the root, or a path that exists only outside
        own = root / path.strip("/")
        yield from (group for group in (own, *own.parents) if group.is_relative_to(root))


def _file_cache(folder: Path) -> int:
    stat = _text(folder / "memory.stat")
    match = re.search(r"^total_inactive_file (\d+)", stat, re.M) or re.search(
        r"^inactive_file (\d+)", stat, re.M
    )
    return int(match[1]) if match else 0


def _number(*files: Path) -> int | None:
    """The number in the first of these files that contains one."""
    for file in files:
        words = _words(file)
        if words and words[0].isdigit():
            return int(words[0])
    return None


def _words(file: Path) -> list[str]:
    return _text(file).split()


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


MOST_ON_GPU = 32  # each takes about 60 MB


def decoding_processes(device: str, engines: int | None = None) -> int | None:
    """The default number of decoding processes; None for the default on CPUs.

    A GPU computes faster than a few cores decode, so all cores but one decode, divided among the
    `engines` on GPUs. If their number is unknown, it is one for each GPU of the machine; where a
    scheduler restricts the cores of this process, one for each visible GPU.
    """
    if not device.startswith("cuda"):
        return None
    cores = int(processors())
    if engines is None:
        engines = visible_gpus() if cores < (os.cpu_count() or 1) else installed_gpus()
    share, remainder = divmod(cores - 1, max(1, engines))
    share += int(device.partition(":")[2] or 0) < remainder
    return max(1, min(MOST_ON_GPU, share))


NVML = "libnvidia-ml.so.1"
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
    entry.
    """
    if visible.startswith("MIG-"):
        return min(1, installed)
    entries = [entry.strip() for entry in visible.split(",")]
    is_valid = (e.startswith("GPU-") or (e.isdecimal() and int(e) < installed) for e in entries)
    return min(sum(takewhile(bool, is_valid)), installed)


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
