"""What the stages of benchmarks/gpu.py measure: models with random weights, engines, programs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from typing import Any
from unittest import mock

import numpy as np
import torch

from benchmarks.measure import hub_config
from pgcli import tasks
from pgcli.bench.engine_runner import EngineRunner
from pgcli.bench.measure import agreement
from pgcli.bench.reference_runner import ReferenceRunner
from pgcli.bench.runner import BenchInputs, BenchRun
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
from pgcli.model.cuda.fused_gemma import FusedGemma, fuse_decoder
from pgcli.model.gemma import Gemma
from pgcli.model.optimize import optimize_for_device
from pgcli.model.paligemma import PaliGemma
from pgcli.model.quantized.gated_mlp import quantize_mlps
from pgcli.proof import reference
from pgcli.records import DecodedImage, Item

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
        """Each row's length, always the same."""
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
        """A configuration of the Hub's layout."""
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

    def __init__(self, setup: Setup, generation: int, folder: Path, quantize: str = "none"):
        self.folder = folder
        config = setup.config(generation)
        (folder / "config.json").write_text(json.dumps(config))
        shutil.copy(BUILTIN / "tokenizer.json", folder)
        self.model = setup.model(config, setup.dtype)
        # on a CPU nothing is packed, so that transformers shares the weights
        if setup.device.type == "cuda":
            optimize_for_device(self.model, quantize)
        elif quantize != "none":
            quantize_mlps(self.model)
            fuse_decoder(self.model)
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

    def computed_gb(self, batch: int, lengths: Lengths) -> float:
        """The memory of a batch by the estimate of `--batch-size auto`; peaks are to be below."""
        config, itemsize = self.model.config, self.model.projector.weight.itemsize
        device = self.model.projector.weight.device.type
        new = lengths.most
        return batch_bytes(config, itemsize, batch, device=device, new_tokens=new) / 1e9

    def programs(self) -> dict[str, Callable[[BenchInputs], BenchRun]]:
        """The programs that are compared."""
        ours = EngineRunner(self.engine)
        eager = partial(mock.patch.object, model_runner, "step_recorder", lambda model: None)
        plain = partial(mock.patch.object, FusedGemma, "forward", Gemma.forward)
        return {
            "recorded": partial(_within, [nullcontext], ours.run_arrays),
            "eager": partial(_within, [eager], ours.run_arrays),
            "plain": partial(_within, [eager, plain], ours.run_arrays),
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
        whole: torch.Tensor = owned[part.parameter].detach()
        state[PALIGEMMA.hub_name(name)] = whole.narrow(0, part.start, part.shape[0])
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
        "images/s": rows / median(one.seconds for one in runs),
        "rounds": [rows / one.seconds for one in runs],
        "vision, prefill, decode ms": [
            1000 * seconds
            for seconds in (last.stages.vision, last.stages.prefill, last.stages.decode)
        ],
        "peak GB": (last.peak_bytes or 0) / 1e9,
        "tokens as recorded": same.share,
    }
