"""The training loop: batches in, a better model out; stops and goes on where it stood.

I pictures · B rows · T text tokens · M answer tokens
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from pgcli.model.paligemma import PaliGemma
from pgcli.model.siglip import normalise
from pgcli.training.data import IGNORED, Batch, Drawings, batches
from pgcli.training.losses import answer_loss

STATE = "state.pt"
HALF = 0.5  # PaliGemma's mean and standard deviation of every channel


@dataclass(frozen=True, slots=True)
class Schedule:
    """How long and how fast: the rate climbs, stays, and falls to nothing over the last steps.

    Since it stays, a run's length may be decided while it goes on.
    """

    steps: int
    warmup: int = 1000
    decay: int = 5000
    rate: float = 1e-3

    def at(self, step: int) -> float:
        """The learning rate of step number `step`, counted from 0."""
        climbing = (step + 1) / self.warmup
        falling = (self.steps - step) / self.decay
        return self.rate * max(0.0, min(1.0, climbing, falling))


def initialise(model: PaliGemma, seed: int) -> None:
    """Fill the parameters with random numbers under which signals neither grow nor fade."""
    generator = torch.Generator().manual_seed(seed)

    def fill(weight: Tensor, std: float) -> None:
        weight.copy_(torch.randn(weight.shape, generator=generator) * std)

    depths = {"vision": model.config.vision.depth, "decoder": model.config.decoder.depth}
    with torch.no_grad():
        for name, module in model.named_modules():
            if isinstance(module, nn.Embedding):
                learned_places = name.endswith("position_embedding")
                fill(module.weight, 0.1 if learned_places else module.embedding_dim**-0.5)
            elif isinstance(module, nn.Linear | nn.Conv2d):
                joins = name.endswith(("o_proj", "out_proj", "down_proj", "fc2"))
                branches = 2 * depths.get(name.split(".")[0], 1) if joins else 1
                fill(module.weight, (module.weight[0].numel() * branches) ** -0.5)
                if module.bias is not None:
                    module.bias.zero_()


def optimizer_for(model: PaliGemma) -> torch.optim.AdamW:
    """AdamW that decays matrices only: norms, biases and embeddings keep their size."""
    decayed: list[nn.Parameter] = []
    kept: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        matrix = parameter.ndim > 1 and "embed" not in name
        (decayed if matrix else kept).append(parameter)
    groups = [{"params": decayed, "weight_decay": 0.05}, {"params": kept, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, betas=(0.9, 0.98), fused=True)


def answer_pass(model: PaliGemma, batch: Batch, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Logits (M, V) and targets (M) of every answer token of a batch, row by row."""
    half = torch.tensor(HALF, device=batch.pixels_IRRC.device)
    patch_IPD = model.encode(normalise(batch.pixels_IRRC, half, half, dtype))
    hidden_BTD = model(
        patch_IPD.index_select(0, batch.picture_B),
        batch.token_BT,
        batch.is_real_BT,
        batch.is_prefix_BT,
    )
    is_answer_BT = batch.target_BT != IGNORED
    return model.decoder.logits(hidden_BTD[is_answer_BT]), batch.target_BT[is_answer_BT]


def entirely_right(batch: Batch, logits_MV: Tensor) -> dict[str, tuple[int, int]]:
    """Rows answered without a fault, and rows, by kind of lesson.

    A row whose every token is the likeliest after the true ones before it is what greedy
    decoding answers, so this is the exact-match rate without decoding.
    """
    wrong_BT = torch.zeros_like(batch.is_real_BT)
    is_answer_BT = batch.target_BT != IGNORED
    wrong_BT[is_answer_BT] = logits_MV.argmax(-1) != batch.target_BT[is_answer_BT]
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for kind, wrong in zip(batch.kinds, wrong_BT.any(1).tolist(), strict=True):
        counts[kind][0] += not wrong
        counts[kind][1] += 1
    return {kind: (right, rows) for kind, (right, rows) in sorted(counts.items())}


class Run:
    """A training run in a folder: model, optimizer and step, saved together and resumed alike."""

    def __init__(self, model: PaliGemma, drawings: Drawings, schedule: Schedule, folder: Path):
        self.model = model
        self.drawings = drawings
        self.schedule = schedule
        self.folder = folder
        self.device = next(model.parameters()).device
        self.optimizer = optimizer_for(model)
        self.step = 0
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / STATE).exists():
            self._resume()

    def train(self, *, workers: int, minutes: float, save_every: int, log_every: int) -> bool:
        """Go on to the last step, or until the time is up; True where the run is complete."""
        if self.device.type == "cuda":
            self.model.compile()
            self.model.vision.compile()
        start = time.monotonic()
        bar = tqdm(total=self.schedule.steps, initial=self.step, unit="step", mininterval=1)
        with bar, (self.folder / "log.jsonl").open("a", encoding="utf-8") as log:
            for batch in self._batches(workers):
                report = self._learn(batch.to(self.device), told=self.step % log_every == 0)
                self.step += 1
                bar.update()
                if report:
                    report["seconds"] = round(time.monotonic() - start, 1)
                    log.write(json.dumps(report) + "\n")
                    log.flush()
                    bar.set_postfix(loss=f"{report['loss']:.3f}")
                if self.step % save_every == 0:
                    self.save()
                if time.monotonic() - start > 60 * minutes:
                    break
        self.save()
        return self.step >= self.schedule.steps

    def save(self) -> None:
        """Write the whole state under another name, then put it in the place of the last one."""
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "schedule": asdict(self.schedule),
        }
        unfinished = self.folder / f"{STATE}.tmp"
        torch.save(state, unfinished)
        unfinished.replace(self.folder / STATE)

    def _resume(self) -> None:
        state = torch.load(self.folder / STATE, map_location=self.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]

    def _batches(self, workers: int) -> Iterator[Batch]:
        return batches(self.drawings, first=self.step, end=self.schedule.steps, workers=workers)

    def _learn(self, batch: Batch, *, told: bool) -> dict[str, Any]:
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule.at(self.step)
        cuda = self.device.type == "cuda"
        with torch.autocast("cuda", torch.bfloat16) if cuda else nullcontext():
            logits_MV, target_M = answer_pass(self.model, batch, torch.float32)
        weight_M = batch.weight_BT[batch.target_BT != IGNORED]
        loss = answer_loss(logits_MV, target_M, weight_M, self.drawings.vocabulary.locations)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if not told:
            return {}
        right = entirely_right(batch, logits_MV.detach())
        return {
            "step": self.step,
            "loss": round(loss.item(), 5),
            "norm": round(float(norm), 4),
            "right": {kind: round(good / rows, 4) for kind, (good, rows) in right.items()},
        }
