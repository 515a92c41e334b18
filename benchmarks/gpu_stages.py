"""The stages of benchmarks/gpu.py: each yields names and values as they are measured."""

from __future__ import annotations

import platform
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu_bench import Bench, Lengths, Setup, summary
from pgcli.bench.engine_runner import EngineRunner
from pgcli.bench.measure import in_turns
from pgcli.bench.peak_rates import _min_seconds
from pgcli.model.attention import softcapped_attention
from pgcli.model.cuda.fused_gemma import fuse_decoder
from pgcli.model.paligemma import PaliGemma

Values = Iterator[tuple[str, Any]]
PACKAGES = ("torch", "triton", "transformers", "numpy", "pillow")


def versions(setup: Setup) -> Values:
    """Versions, the device, and which attention backends run."""
    yield "python", platform.python_version()
    for name in PACKAGES:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            yield name, "not installed"
    yield "cuda", torch.version.cuda
    if setup.device.type == "cuda":
        about = torch.cuda.get_device_properties(setup.device)
        yield "device", [about.name, about.total_memory, about.multi_processor_count]
    backends = (
        *(SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION),
        *(SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH),
    )
    for name, size, heads, queries, has_mask in (
        ("vision", 72, 16, 272, False),
        ("prefill", 256, 1, 8 * 272, False),
        ("prefill with padding", 256, 1, 8 * 272, True),
    ):
        q = torch.randn(4, heads, queries, size, device=setup.device, dtype=setup.dtype)
        mask = torch.ones(4, 1, 1, 272, dtype=torch.bool, device=setup.device) if has_mask else None
        yield f"attention of {name}", dict(_backends(q, mask, backends))
    q = torch.randn(4, 4, 2 * 272, 256, device=setup.device, dtype=setup.dtype)
    key = q[:, :, :272]
    run = partial(softcapped_attention, q, key, key, None, 0.0625, 50.0)
    yield "softcapped attention of prefill", {"default": 1000 * _min_seconds(run, setup.device)}


def _backends(q: torch.Tensor, mask: Any, backends: tuple[SDPBackend, ...]) -> Values:
    """Milliseconds of each backend that runs, and of the default."""
    key = q[:, :, :272]
    run = partial(F.scaled_dot_product_attention, q, key, key, attn_mask=mask)
    yield "default", 1000 * _min_seconds(run, q.device)
    for backend in backends:
        try:
            with warnings.catch_warnings(), sdpa_kernel(backend):
                warnings.simplefilter("ignore")
                yield backend.name, 1000 * _min_seconds(run, q.device)
        except RuntimeError:
            yield backend.name, "does not run"


def parity(setup: Setup) -> Values:
    """Relative differences of the logits of a layer from float64; then the GPU tests."""
    for generation in (1, 2):
        config = setup.config(generation, num_hidden_layers=1)
        reference = setup.model(config, torch.float64)
        expected = _logits(reference)
        for dtype in (torch.float32, torch.bfloat16):
            model = setup.model(config, dtype)
            for one, other in zip(model.parameters(), reference.parameters(), strict=True):
                one.copy_(other)
            name = f"generation {generation}, {str(dtype).removeprefix('torch.')}"
            plain = _logits(model)
            fuse_decoder(model)
            fused = _logits(model)
            yield (
                name,
                {
                    "plain": _distance(plain, expected),
                    "fused": _distance(fused, expected),
                    "fused from plain": _distance(fused, plain),
                },
            )
    if not setup.tiny:
        command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider"]
        done = subprocess.run([*command, "tests"], capture_output=True, text=True, check=False)
        yield "tests", (done.stdout.strip().splitlines() or [done.stderr[-200:]])[-1]


@torch.inference_mode()
def _logits(model: PaliGemma) -> torch.Tensor:
    """The logits of a prefill of five rows and of three steps."""
    config, weight = model.config, model.projector.weight
    generator = torch.Generator().manual_seed(1)
    shape = (5, config.image_tokens, config.decoder.width)
    patch_BPD = torch.randn(shape, generator=generator).to(weight)
    token_BT = torch.arange(80, device=weight.device).view(5, 16)
    cache = model.kv_cache(5)
    found = [model.prefill(patch_BPD, token_BT, None, cache)]
    found += [model.decode_step(token_BT[:, step].clone(), cache) for step in range(3)]
    return torch.stack(found).double()


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).norm() / other.norm())


def quantized(setup: Setup) -> Values:
    """Images/s with the MLPs in 8 bits, and the share of tokens as unquantized ones."""
    batch, lengths = (2, Lengths(3, 3)) if setup.tiny else (256, Lengths(16, 16))
    with tempfile.TemporaryDirectory() as scratch:
        benches = {}
        for name in ("none", "fp8"):
            folder = Path(scratch) / name
            folder.mkdir()
            try:
                benches[name] = Bench(setup, 1, folder, name)
                EngineRunner(benches[name].engine).run_arrays(
                    benches[name].inputs(batch, batch, lengths)
                )
            except RuntimeError as problem:
                del benches[name]
                yield f"images of {name}", f"failed: {problem}"
        inputs = next(iter(benches.values())).inputs(batch, 2 * batch, lengths)
        programs = [EngineRunner(one.engine).run_arrays for one in benches.values()]
        runs = in_turns([partial(run, inputs) for run in programs], 2)
        for name, of_one in zip(benches, runs, strict=True):
            yield f"batch {batch}, {lengths} tokens, {name}", summary(of_one, runs[0][-1])


def turns(setup: Setup, generation: int = 1) -> Values:
    """Images/s of all programs in turns, with the seconds of stages, memory and equal tokens."""
    if setup.tiny:
        settings = [(2, Lengths(3, 3))]
    else:
        settings = [(64, Lengths(16, 16)), (256, Lengths(16, 16)), (256, Lengths(64, 64))]
        settings += [(64, Lengths(64, 64)), (256, Lengths(4, 64)), (64, Lengths(4, 64))]
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(setup, generation, Path(folder))
        programs = bench.programs()
        for batch, lengths in settings:
            inputs = bench.inputs(batch, 2 * batch, lengths)
            yield f"batch {batch}, {lengths} tokens, computed GB", bench.computed_gb(batch, lengths)
            for run in programs.values():
                run(bench.inputs(batch, batch, lengths))
            runs = in_turns([partial(run, inputs) for run in programs.values()], 2)
            for (name, _), of_one in zip(programs.items(), runs, strict=True):
                yield f"batch {batch}, {lengths} tokens, {name}", summary(of_one, runs[0][-1])
        if setup.device.type == "cuda":  # last, as transformers compiles for minutes
            static = bench.reference(static=True).run_arrays
            batch, lengths = settings[0]
            inputs = bench.inputs(batch, batch, lengths)
            static(inputs)
            run = static(inputs)
            yield f"batch {batch}, {lengths} tokens, static cache", summary([run], run)


def waits(setup: Setup) -> Values:
    """Synchronizations, kernels and the busy share of one batch."""
    batch, lengths = (2, Lengths(3, 3)) if setup.tiny else (256, Lengths(32, 32))
    on_gpu = setup.device.type == "cuda"
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(setup, 1, Path(folder))
        run = EngineRunner(bench.engine).run_arrays
        inputs = bench.inputs(batch, batch, lengths)
        run(inputs)
        places: Counter[str] = Counter()
        with warnings.catch_warnings(), mock.patch("warnings.showwarning", counting(places)):
            warnings.simplefilter("always")
            if on_gpu:
                torch.cuda.set_sync_debug_mode("warn")
            run(inputs)
            if on_gpu:
                torch.cuda.set_sync_debug_mode("default")
        yield "synchronizations", dict(places.most_common())
        activities = [torch.profiler.ProfilerActivity.CPU]
        if on_gpu:
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        with torch.profiler.profile(activities=activities) as profile:
            seconds = run(inputs).seconds
        events = profile.key_averages()
        kernels = [one for one in events if one.device_type != torch.autograd.DeviceType.CPU]
        busy = sum(one.self_device_time_total for one in kernels) / 1e6
        yield "seconds of the batch", seconds
        yield "busy share", busy / seconds
        yield "kernels", sum(one.count for one in kernels)
        launches = ("cudaLaunchKernel", "cuLaunchKernel", "cudaLaunchKernelExC", "cudaGraphLaunch")
        counts = {one.key: one.count for one in events if one.key in launches}
        yield "launches", counts
        yield "launches a step, prefill and vision included", sum(counts.values()) / lengths.most
        for one in sorted(kernels, key=lambda one: -one.self_device_time_total)[:15]:
            yield f"kernel {one.key[:60]}", [one.count, one.self_device_time_total / 1e3]


def counting(places: Counter[str]) -> Callable[..., None]:
    """A `showwarning` that counts the stacks of calls, from this program's outermost inwards."""

    def show(message: Any, category: type, file: str, line: int, *_: Any) -> None:
        stack = [f for f in traceback.extract_stack() if "/pgcli/" in f.filename]
        frames = [f"{Path(one.filename).name}:{one.lineno}" for one in stack]
        places[" > ".join(frames[-5:]) or f"{Path(file).name}:{line}"] += 1

    return show


STAGES: dict[str, Callable[[Setup], Values]] = {
    "versions": versions,
    "parity": parity,
    "waits": waits,
    "turns": turns,
    "turns2": partial(turns, generation=2),
    "quantized": quantized,
}
