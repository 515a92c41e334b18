"""The stages of benchmarks/gpu.py: each yields names and values as they are measured."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.decode import jpeg, photograph
from benchmarks.full_size import TEXT, VISION
from pgcli import tasks
from pgcli.bench.agreement import agreement
from pgcli.bench.engine_runner import EngineRunner
from pgcli.bench.measure import in_turns
from pgcli.bench.peak_rates import _memory, _min_seconds
from pgcli.bench.reference_model import share_weights
from pgcli.bench.reference_runner import ReferenceRunner
from pgcli.bench.runner import BenchInputs, BenchRun
from pgcli.bench.settings import Lengths
from pgcli.checkpoints.config import parse_config
from pgcli.checkpoints.find import BUILTIN
from pgcli.checkpoints.preprocessing import Preprocessing
from pgcli.checkpoints.weights import meta_model
from pgcli.cli.answer_files import answer_files
from pgcli.device.select import choose_device
from pgcli.engine import model_runner
from pgcli.engine.engine import InferenceEngine
from pgcli.engine.tokenizer import Tokenizer
from pgcli.model.cuda.fused_gemma import fuse_decoder, plain_decoder
from pgcli.model.optimize import optimize_for_device
from pgcli.model.paligemma import PaliGemma
from pgcli.records import DecodedImage, Item

Values = Iterator[tuple[str, Any]]
TINY_TEXT = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 32}
TINY_VISION = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
PACKAGES = ("torch", "triton", "transformers", "numpy", "pillow")


@dataclass(frozen=True)
class Setup:
    """The device and the sizes of a measurement."""

    device: torch.device
    tiny: bool

    @classmethod
    def make(cls, device: str, *, tiny: bool) -> Setup:
        return cls(choose_device(device), tiny)

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.device.type == "cuda" else torch.float32

    def config(self, generation: int, **text: int) -> dict[str, Any]:
        """A configuration of the Hub's layout."""
        decoder = TEXT[generation] | (TINY_TEXT if self.tiny else {}) | text
        vision = VISION | {"image_size": 56 if self.tiny else 224}
        return {
            "architectures": ["PaliGemmaForConditionalGeneration"],
            "model_type": "paligemma",
            "eos_token_id": 1,
            "image_token_index": 257152,
            "projection_dim": decoder["hidden_size"],
            "text_config": decoder,
            "vision_config": vision | (TINY_VISION if self.tiny else {}),
        }

    def model(self, config: dict[str, Any], dtype: torch.dtype) -> PaliGemma:
        """A model with random weights drawn on the device."""
        model = meta_model(parse_config(config)).to(dtype).to_empty(device=self.device).eval()
        torch.manual_seed(0)
        for name, parameter in model.requires_grad_(False).named_parameters():
            parameter.normal_(std=0.1 if "norm" in name else parameter.shape[-1] ** -0.5)
        return model


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


def roofs(setup: Setup) -> Values:
    """Rates of products and of memory: TFLOP/s and TB/s."""
    large = 256 if setup.tiny else 8192
    shapes = {f"{large} cubed": (large, large, large)}
    for generation in (1, 2):
        config = parse_config(setup.config(generation))
        tower, decoder = config.vision, config.decoder
        heads = decoder.num_heads * decoder.head_dim
        products = {
            "vision qkv": (tower.width, 3 * tower.width),
            "vision fc1": (tower.width, tower.mlp_dim),
            "vision fc2": (tower.mlp_dim, tower.width),
            "qkv": (decoder.width, heads + 2 * decoder.num_kv_heads * decoder.head_dim),
            "o": (heads, decoder.width),
            "gate and up": (decoder.width, 2 * decoder.mlp_dim),
            "down": (decoder.mlp_dim, decoder.width),
        }
        for rows in (4,) if setup.tiny else (64, 256, 17_408, 34_816):
            for name, (inner, outer) in products.items():
                shapes[f"generation {generation}, {name}, {rows} rows"] = (rows, inner, outer)
    for name, (rows, inner, outer) in shapes.items():
        x = torch.randn(rows, inner, device=setup.device, dtype=setup.dtype)
        weight = torch.randn(outer, inner, device=setup.device, dtype=setup.dtype)
        seconds = _min_seconds(partial(F.linear, x, weight), setup.device)
        yield name, 2 * rows * inner * outer / seconds / 1e12
    copied, read = _memory(setup.device)
    yield "copy", copied / 1e12
    yield "read", read / 1e12


class Bench:
    """An engine with random weights, its images, and the checkpoint's folder without weights."""

    def __init__(self, setup: Setup, generation: int, folder: Path):
        self.setup, self.folder = setup, folder
        config = setup.config(generation)
        (folder / "config.json").write_text(json.dumps(config))
        shutil.copy(BUILTIN / "tokenizer.json", folder)
        self.model = setup.model(config, setup.dtype)
        # on a CPU nothing is packed, so that transformers shares the weights
        if setup.device.type == "cuda":
            optimize_for_device(self.model)
        self.engine = InferenceEngine(
            self.model, Tokenizer.from_folder(folder), Preprocessing(), label="random", batch_size=1
        )

    def inputs(self, batch: int, count: int, lengths: Lengths) -> BenchInputs:
        side = self.engine.spec.resolution
        pixels = np.random.default_rng(0).integers(0, 256, (count, side, side, 3), np.uint8)
        images = [
            DecodedImage(Item(n, str(n), str(n)), side, side, one, 0.0)
            for n, one in enumerate(pixels)
        ]
        question = tasks.ask(("caption en",), max_new_tokens=lengths.most)
        ids = [self.engine.tokenizer.encode_prompt("caption en")]
        return BenchInputs(images, [], question, ids, lengths.of(count), batch)

    def programs(self) -> dict[str, Callable[[BenchInputs], BenchRun]]:
        """The programs that are compared."""
        ours = EngineRunner(self.engine, answer_files)
        eager = partial(mock.patch.object, model_runner, "step_recorder", lambda model: None)
        return {
            "recorded": partial(_within, [nullcontext], ours.run_arrays),
            "eager": partial(_within, [eager], ours.run_arrays),
            "plain": partial(_within, [eager, partial(plain_decoder, self.model)], ours.run_arrays),
            "transformers": self.reference().run_arrays,
        }

    def reference(self, *, static: bool = False) -> ReferenceRunner:
        """transformers with the same weights, in the same memory."""
        return ReferenceRunner(
            *(share_weights(self.model, self.folder), self.folder),
            *(self.model.config, Preprocessing()),
            vocabulary=self.engine.tokenizer.size,
            static=static,
        )


def _within(
    contexts: list[Callable[[], AbstractContextManager[Any]]],
    run: Callable[[BenchInputs], BenchRun],
    inputs: BenchInputs,
) -> BenchRun:
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context())
        return run(inputs)


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
            for run in programs.values():
                run(bench.inputs(batch, batch, lengths))
            runs = in_turns([partial(run, inputs) for run in programs.values()], 2)
            for (name, _), of_one in zip(programs.items(), runs, strict=True):
                yield f"batch {batch}, {lengths} tokens, {name}", _summary(of_one, runs[0][-1])
        if setup.device.type == "cuda":  # last, as transformers compiles for minutes
            static = bench.reference(static=True).run_arrays
            batch, lengths = settings[0]
            inputs = bench.inputs(batch, batch, lengths)
            static(inputs)
            run = static(inputs)
            yield f"batch {batch}, {lengths} tokens, static cache", _summary([run], run)


def _summary(runs: list[BenchRun], recorded: BenchRun) -> dict[str, Any]:
    rows, last = len(recorded.tokens), runs[-1]
    same = agreement("recorded", last.tokens, recorded.tokens)
    return {
        "images/s": rows / median(one.seconds for one in runs),
        "rounds": [rows / one.seconds for one in runs],
        "vision, prefill, decode ms": [
            1000 * seconds
            for seconds in (last.stages.vision, last.stages.prefill, last.stages.decode)
        ],
        "peak GB": (last.peak_bytes or 0) / 1e9,
        "tokens as recorded": same.share,
    }


def waits(setup: Setup) -> Values:
    """Synchronizations, kernels and the busy share of one batch."""
    batch, lengths = (2, Lengths(3, 3)) if setup.tiny else (256, Lengths(32, 32))
    on_gpu = setup.device.type == "cuda"
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(setup, 1, Path(folder))
        run = EngineRunner(bench.engine, answer_files).run_arrays
        inputs = bench.inputs(batch, batch, lengths)
        run(inputs)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if on_gpu:
                torch.cuda.set_sync_debug_mode("warn")
            run(inputs)
            if on_gpu:
                torch.cuda.set_sync_debug_mode("default")
        places = Counter(f"{Path(one.filename).name}:{one.lineno}" for one in caught)
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
        yield "launches", {one.key: one.count for one in events if one.key in launches}
        for one in sorted(kernels, key=lambda one: -one.self_device_time_total)[:15]:
            yield f"kernel {one.key[:60]}", [one.count, one.self_device_time_total / 1e3]


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
                    "pgcli.cli.answer_files.decoding_processes", lambda _, n=processes: n
                ):
                    run = EngineRunner(bench.engine, answer_files).run_files(
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
    "files": files,
}
