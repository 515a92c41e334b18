"""The stages of benchmarks/gpu.py: each yields names and values as they are measured."""

from __future__ import annotations

import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks.decode import jpeg, photograph
from benchmarks.gpu_bench import Bench, Lengths, Setup, summary
from benchmarks.gpu_kernels import (
    Values,
    parity,
    products_of,
    quantized_rates,
    roofs,
    row_counts,
    versions,
)
from pgcli.bench.engine_runner import EngineRunner
from pgcli.bench.measure import in_turns
from pgcli.bench.runner import BenchInputs
from pgcli.checkpoints.config import parse_config


def quantized(setup: Setup) -> Values:
    """TFLOP/s of the MLPs' products in 8 bits, and images/s with tokens as unquantized ones."""
    for generation in (1, 2):
        widths = products_of(parse_config(setup.config(generation)))
        for rows in row_counts(setup):
            for name in ("gate and up", "down"):
                found = dict(quantized_rates(setup, rows, *widths[name]))
                yield f"generation {generation}, {name}, {rows} rows", found
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


def files(setup: Setup) -> Values:
    """Images/s from JPEG files to rows, with 4 and 14 decoding workers."""
    kinds = {"0.5 MP": (816, 612, 2048), "12 MP": (4000, 3000, 256)}
    if setup.tiny:
        kinds = {"tiny": (80, 60, 4)}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(setup, 1, Path(folder))
        for name, (width, height, count) in kinds.items():
            made = [jpeg(photograph(width, height, seed=seed)) for seed in range(min(8, count))]
            paths = [Path(folder) / f"{name} {n}.jpg" for n in range(count)]
            for number, path in enumerate(paths):
                path.write_bytes(made[number % len(made)])
            inputs = bench.inputs(2 if setup.tiny else 256, 1, Lengths(16, 16))
            row_lengths = (16,) * count
            for processes in (4, 14, 4, 14)[: 1 if setup.tiny else 4]:
                with mock.patch(
                    "pgcli.bench.engine_runner.decoding_processes", lambda _, n=processes: n
                ):
                    run = EngineRunner(bench.engine).run_files(
                        BenchInputs(
                            *([], paths, inputs.question, inputs.ids, row_lengths, inputs.batch)
                        ),
                        Path(folder) / f"rows {name} {processes}.jsonl",
                    )
                yield f"{name}, {processes} workers", count / run.seconds


STAGES: dict[str, Callable[[Setup], Values]] = {
    "versions": versions,
    "parity": parity,
    "roofs": roofs,
    "waits": waits,
    "turns": turns,
    "turns2": partial(turns, generation=2),
    "quantized": quantized,
    "files": files,
}
