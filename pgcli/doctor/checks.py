"""Checks this machine: packages, PyTorch, the GPU, processors, memory, models and the Hub.

Each check is independent of the others: it works if PyTorch or another package is missing or
broken, and changes nothing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Literal

from pgcli.checkpoints.find import builtin_models
from pgcli.device import machine
from pgcli.device.machine import (
    diagnose_gpu,
    gpu_has_bfloat16,
    nvidia_driver,
    wheel_command,
)
from pgcli.text import byte_count, count, first_line

Severity = Literal["ok", "warn", "bad"]
DISTRIBUTION = "paligemma-cli"
NAMESAKE = "pgcli"  # the PostgreSQL client's distribution, package and command
PIP = f"{sys.executable} -m pip"
TORCH, GPU, KERNELS, DTYPES = "pytorch", "gpu", "kernels", "dtypes"
GB = 10**9
LARGE_MODEL_BYTES = 7 * GB  # 3b in bfloat16, and a few rows
INT8_MODEL_BYTES = 4.5 * GB  # the same, quantized
MOVE = "export HF_HOME=DIR, a writable folder on a large disk"
MODEL_FILES = ("config.json", "tokenizer.json", "model.safetensors")


@dataclass(frozen=True, slots=True)
class Finding:
    """`bad` prevents runs, `warn` makes them slower or limits them."""

    name: str
    state: Severity
    description: str
    remedy: str = ""


def ok(name: str, description: str) -> Finding:
    return Finding(name, "ok", description)


def warn(name: str, description: str, remedy: str) -> Finding:
    return Finding(name, "warn", description, remedy)


def bad(name: str, description: str, remedy: str) -> Finding:
    return Finding(name, "bad", description, remedy)


def examine() -> Iterator[Finding]:
    """Every finding, as soon as its check is done, without network access."""
    yield python()
    yield from requirements()
    yield namesake()
    yield from accelerator_findings()
    yield processor()
    yield memory()
    yield from model_findings()
    yield from hub_findings()


def python() -> Finding:
    """The version and the location of Python."""
    return ok("python", f"{sys.version.split()[0]} in {sys.prefix}")


def requirements() -> Iterator[Finding]:
    """Each required package that is missing or too old; else one finding for all of them."""
    try:
        from packaging.requirements import Requirement

        lines = metadata.requires(DISTRIBUTION) or []
    except (ImportError, metadata.PackageNotFoundError):
        what = f"pgcli runs from {Path(__file__).parents[1]}, not installed"
        yield warn("packages", what, f"{PIP} install -e . in the repository's folder")
        return
    required = [r for r in map(Requirement, lines) if r.marker is None or r.marker.evaluate()]
    problems = 0
    for requirement in required:
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            version = ""
        if not version or not requirement.specifier.contains(version, prereleases=True):
            problems += 1
            what = f"{version}, and {requirement} is required" if version else "not installed"
            yield bad(requirement.name, what, f"{PIP} install '{requirement}'")
    if not problems:
        own = f"pgcli {metadata.version(DISTRIBUTION)} in {Path(__file__).parents[1]}"
        yield ok("packages", f"{own} and its {len(required)} dependencies")


def namesake() -> Finding:
    """The PostgreSQL client and this package overwrite each other's files."""
    try:
        version = metadata.version(NAMESAKE)
    except metadata.PackageNotFoundError:
        return ok("namesake", "the PostgreSQL client pgcli is not in this environment")
    return bad(
        "namesake",
        f"the PostgreSQL client pgcli {version} is in this environment: same command, same folder",
        f"{PIP} uninstall -y {NAMESAKE} {DISTRIBUTION} && {PIP} install {DISTRIBUTION}",
    )


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


def imported() -> Any | Finding:
    """PyTorch, if it is installed and computes; else a finding."""
    try:
        import torch

        torch.ones(2, 2).mm(torch.ones(2, 2)).sum().item()
    except (ImportError, OSError, RuntimeError, AttributeError, TypeError, ValueError) as broken:
        if getattr(broken, "name", None) == "torch":
            return bad(TORCH, "not installed", f"{PIP} install torch")
        return bad(
            TORCH, f"is broken: {first_line(broken)}", f"{PIP} install --force-reinstall torch"
        )
    return torch


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
    from pgcli.model.cuda.optimize import triton_problem

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
    if torch.backends.mps.is_available():
        return ok(GPU, "Apple GPU, as mps")
    return ok(GPU, "none; runs use the CPU")


def dtypes(torch: Any) -> Finding:
    """How this machine multiplies weights of each dtype without an NVIDIA GPU."""
    if torch.backends.mps.is_available():
        if torch.backends.mps.is_macos_or_newer(14, 0):
            return ok(DTYPES, "bfloat16 on the Apple GPU")
        description = "bfloat16 needs macOS 14: float32, at twice the memory"
        return warn(DTYPES, description, "softwareupdate --install --all")
    from pgcli.model.cpu.optimize import describe_processor  # only if torch can be imported

    return ok(DTYPES, f"on the CPU, {describe_processor()}")


def processor() -> Finding:
    """The usable processors, compared with the threads that PyTorch starts."""
    count, total = machine.processors(), os.cpu_count() or 1
    threads = os.environ.get("OMP_NUM_THREADS", "")
    # like PyTorch, which ignores a container's limit
    started = int(threads) if threads.isdigit() else total
    description = f"{count:g} usable of {total}"
    if started <= count + 1:
        return ok("processors", description)
    return warn(
        "processors",
        f"{description}, and PyTorch starts {started} threads",
        f"export OMP_NUM_THREADS={max(1, int(count))}",
    )


def memory() -> Finding:
    """The free memory of the system or within the container's limit."""
    total, available = meminfo("MemTotal"), meminfo("MemAvailable")
    group_free = machine.memory_left()
    free = min((n for n in (available, group_free) if n is not None), default=None)
    if free is None:
        return ok("memory", "unknown on this system")
    description = f"{free / GB:.1f} GB free" + (f" of {total / GB:.1f} GB" if total else "")
    if group_free is not None and group_free == free:
        description += " (container limit)"
    if free < LARGE_MODEL_BYTES:
        return warn(
            "memory",
            f"{description}; a 3b model takes {LARGE_MODEL_BYTES / GB:.0f} GB in bfloat16, "
            f"{INT8_MODEL_BYTES / GB:.1f} GB with --quantize int8 on a CPU",
            "pgcli info MODEL shows what a model needs; close other programs, or raise the limit",
        )
    return ok("memory", description)


def meminfo(key: str) -> int | None:
    """A value of /proc/meminfo in bytes; None on systems without this file."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return None
    match = re.search(rf"^{key}:\s+(\d+) kB", text, re.M)
    return int(match[1]) * 1024 if match else None


def model_findings(folders: Mapping[str, Path] | None = None) -> Iterator[Finding]:
    """Whether the files of models, by default the built-in ones, are complete."""
    for name, folder in (folders or builtin_models()).items():
        try:
            from safetensors import SafetensorError, safe_open

            *texts, weights = (folder / file for file in MODEL_FILES)
            for file in texts:
                json.loads(file.read_bytes())
            try:
                with safe_open(weights, framework="numpy") as tensors:
                    count = len(tensors.keys())
            except SafetensorError as problem:
                raise ValueError(f"{weights}: {problem}") from problem
        except (ImportError, OSError, ValueError) as problem:
            remedy = f"{PIP} install --force-reinstall --no-deps {DISTRIBUTION}"
            yield bad(f"model {name}", f"damaged: {problem}", remedy)
        else:
            yield ok(f"model {name}", f"intact, {count} tensors")


def hub_findings() -> Iterator[Finding]:
    """The findings about the Hub, without network access."""
    try:
        from huggingface_hub import constants
    except ImportError as problem:
        yield bad("hub", f"huggingface_hub cannot be imported: {first_line(problem)}", "see above")
        return
    yield cache(Path(constants.HF_HUB_CACHE))
    yield login()
    if constants.HF_HUB_OFFLINE:
        yield warn("downloads", "forbidden by HF_HUB_OFFLINE", "unset HF_HUB_OFFLINE")


def cache(folder: Path) -> Finding:
    """Whether a file can be created in the cache folder, and the free space on its disk."""
    existing = next(filter(os.path.lexists, (folder, *folder.parents)), Path("/"))
    try:
        TemporaryFile(dir=existing).close()
        free = shutil.disk_usage(existing).free
    except OSError as problem:
        return bad("cache", f"{folder} is not writable: {problem.strerror}", MOVE)
    description = f"{folder}, {free / GB:.1f} GB free"
    if free < LARGE_MODEL_BYTES:
        return warn("cache", f"{description}; a 3b model needs 6 GB", f"hf cache prune, or {MOVE}")
    return ok("cache", description)


def login() -> Finding:
    """Whether a token is set. The token itself is never shown."""
    from huggingface_hub import get_token

    from pgcli.checkpoints.hub import token_source

    try:
        token = get_token()
    except OSError as problem:
        return bad("login", f"the token cannot be read: {problem}", MOVE)
    if token is None:
        return warn("login", "no token: gated models cannot be downloaded", "hf auth login")
    return ok("login", f"token from {token_source()}")
