"""The stages of benchmarks/gpu.py; each yields names and values as it measures them."""

from __future__ import annotations

import json
import platform
import shutil
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from random import Random
from statistics import median
from typing import Any
from unittest import mock

import numpy as np
import torch

from benchmarks.gpu_files import files
from benchmarks.gpu_parts import parts
from benchmarks.measure import hub_config
from pgcli import tasks
from pgcli.bench.report import agreement, in_turns
from pgcli.bench.runners import BenchInputs, BenchRun, EngineRunner, ReferenceRunner
from pgcli.checkpoints.config import parse_config
from pgcli.checkpoints.families.paligemma import NAMES as PALIGEMMA
from pgcli.checkpoints.find import BUILTIN
from pgcli.checkpoints.preprocessing import Preprocessing
from pgcli.checkpoints.weights import meta_model, param_slices
from pgcli.device.select import choose_device
from pgcli.engine import model_runner
from pgcli.engine.engine import InferenceEngine
from pgcli.engine.memory import batch_bytes
from pgcli.engine.tokenizer import Tokenizer
from pgcli.model.cuda.fused import FusedGemma
from pgcli.model.gemma import Gemma
from pgcli.model.optimize import optimize_for_device
from pgcli.model.paligemma import PaliGemma
from pgcli.records import DecodedImage, Item
from pgcli.verify import reference

Values = Iterator[tuple[str, Any]]
PACKAGES = ("torch", "triton", "transformers", "numpy", "pillow")
TINY_TEXT = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 32}
TINY_VISION = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}


@dataclass(frozen=True)
class Lengths:
    """Lengths of answers, uniform between `least` and `most` tokens."""

    least: int
    most: int

    def __str__(self) -> str:
        return str(self.most) if self.least == self.most else f"{self.least} to {self.most}"

    def of(self, rows: int) -> tuple[int, ...]:
        """Each row's length, the same every time."""
        rng = Random(0)
        return tuple(rng.randint(self.least, self.most) for _ in range(rows))


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
        """A configuration in the Hub's layout."""
        if not self.tiny:
            return hub_config(generation, text=text)
        return hub_config(generation, 56, TINY_TEXT | text, TINY_VISION)

    def model(self, config: dict[str, Any], dtype: torch.dtype) -> PaliGemma:
        """A model with random weights drawn on the device."""
        model = meta_model(parse_config(config)).to(dtype).to_empty(device=self.device).eval()
        torch.manual_seed(0)
        for name, parameter in model.requires_grad_(False).named_parameters():
            parameter.normal_(std=0.1 if "norm" in name else parameter.shape[-1] ** -0.5)
        return model


class Bench:
    """An engine with random weights, its images, and the checkpoint's folder without weights."""

    def __init__(self, setup: Setup, generation: int, folder: Path):
        self.folder = folder
        config = setup.config(generation)
        (folder / "config.json").write_text(json.dumps(config))
        shutil.copy(BUILTIN / "tokenizer.json", folder)
        self.model = setup.model(config, setup.dtype)
        # on a CPU weights are not packed, so that transformers shares them
        if setup.device.type == "cuda":
            optimize_for_device(self.model)
        self.engine = self._engine()

    def _engine(self) -> InferenceEngine:
        """An engine with the model, and with its own KV cache and recorded steps."""
        tokenizer = Tokenizer.from_folder(self.folder)
        return InferenceEngine(self.model, tokenizer, Preprocessing(), label="random", batch_size=1)

    def inputs(self, batch: int, count: int, lengths: Lengths) -> BenchInputs:
        side = self.engine.spec.resolution
        pixels_BRRC = np.random.default_rng(0).integers(0, 256, (count, side, side, 3), np.uint8)
        images = [
            DecodedImage(Item(n, str(n), str(n)), side, side, pixels_RRC, 0.0)
            for n, pixels_RRC in enumerate(pixels_BRRC)
        ]
        question = tasks.ask(("caption en",), max_new_tokens=lengths.most)
        ids = self.engine.tokenizer.encode_prompt("caption en")
        return BenchInputs(images, [], question, ids, lengths.of(count), batch)

    def computed_gb(self, batch: int, lengths: Lengths) -> float:
        """The memory of a batch as `--batch-size auto` estimates it; peaks should be below."""
        config, itemsize = self.model.config, self.model.projector.weight.itemsize
        device = self.model.projector.weight.device.type
        new = lengths.most
        return batch_bytes(config, itemsize, batch, device=device, new_tokens=new) / 1e9

    def programs(self) -> dict[str, Callable[[BenchInputs], BenchRun]]:
        """The compared programs."""
        recorded, step_by_step, unfused = (EngineRunner(self._engine()) for _ in range(3))
        eager = partial(mock.patch.object, model_runner, "step_recorder", lambda model: None)
        plain = partial(mock.patch.object, FusedGemma, "forward", Gemma.forward)
        return {
            "recorded": recorded.run_arrays,
            "eager": partial(_within, [eager], step_by_step.run_arrays),
            "plain": partial(_within, [eager, plain], unfused.run_arrays),
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


def share_weights(model: PaliGemma, folder: Path) -> Any:
    """transformers' model with views of this model's weights, without a copy."""
    library = reference.import_transformers()
    owned = dict(model.named_parameters())
    state = {}
    for name, part in param_slices(model).items():
        weight: torch.Tensor = owned[part.parameter].detach()
        state[PALIGEMMA.hub_name(name)] = weight.narrow(0, part.start, part.shape[0])
    shared, info = library.PaliGemmaForConditionalGeneration.from_pretrained(
        None,
        config=library.AutoConfig.from_pretrained(folder, **reference.SAFE_OPTIONS),
        state_dict=state,
        dtype=model.projector.weight.dtype,
        output_loading_info=True,
    )
    assert not info["missing_keys"]  # transformers initializes them randomly
    return shared.to(model.projector.weight.device).eval().requires_grad_(False)


def _within(
    contexts: list[Callable[[], AbstractContextManager[Any]]],
    run: Callable[[BenchInputs], BenchRun],
    inputs: BenchInputs,
) -> BenchRun:
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context())
        return run(inputs)


def summary(runs: list[BenchRun], recorded: BenchRun) -> dict[str, Any]:
    rows, last = len(recorded.tokens), runs[-1]
    same = agreement("recorded", last.tokens, recorded.tokens)
    return {
        "images/s": rows / median(run.seconds for run in runs),
        "rounds": [rows / run.seconds for run in runs],
        "vision, prefill, decode ms": [
            1000 * seconds
            for seconds in (last.stages.vision, last.stages.prefill, last.stages.decode)
        ],
        "tokens as recorded": same.share,
    }


def versions(setup: Setup) -> Values:
    """Versions and the device."""
    yield "python", platform.python_version()
    for name in PACKAGES:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            yield name, "not installed"
    yield "cuda", torch.version.cuda
    if setup.device.type == "cuda":
        device = torch.cuda.get_device_properties(setup.device)
        yield "device", [device.name, device.total_memory, device.multi_processor_count]


def turns(setup: Setup, generation: int = 1) -> Values:
    """All programs, alternately: images/s, seconds of stages, memory and equal tokens."""
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
            for name, runs_of_program in zip(programs, runs, strict=True):
                measured = summary(runs_of_program, runs[0][-1])
                yield f"batch {batch}, {lengths} tokens, {name}", measured
        if setup.device.type == "cuda":  # last, because transformers compiles for minutes
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
        kernels = [event for event in events if event.device_type != torch.autograd.DeviceType.CPU]
        busy = sum(kernel.self_device_time_total for kernel in kernels) / 1e6
        yield "seconds of the batch", seconds
        yield "busy share", busy / seconds
        yield "kernels", sum(kernel.count for kernel in kernels)
        counts = {event.key: event.count for event in events if "Launch" in event.key}
        yield "launches", counts
        yield "launches a step, prefill and vision included", sum(counts.values()) / lengths.most
        for kernel in sorted(kernels, key=lambda kernel: -kernel.self_device_time_total)[:15]:
            yield f"kernel {kernel.key[:60]}", [kernel.count, kernel.self_device_time_total / 1e3]


def counting(places: Counter[str]) -> Callable[..., None]:
    """A `showwarning` that counts call stacks, from pgcli's outermost call inwards."""

    def show(message: Any, category: type, file: str, line: int, *_: Any) -> None:
        stack = [f for f in traceback.extract_stack() if "/pgcli/" in f.filename]
        frames = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in stack]
        places[" > ".join(frames[-5:]) or f"{Path(file).name}:{line}"] += 1

    return show


STAGES: dict[str, Callable[[Setup], Values]] = {
    "versions": versions,
    "files": lambda setup: files(setup.device, tiny=setup.tiny),
    "parts": lambda setup: parts(setup.device, tiny=setup.tiny),
    "waits": waits,
    "turns": turns,
    "turns2": partial(turns, generation=2),
}
