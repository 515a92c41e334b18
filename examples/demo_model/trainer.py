"""The training loop, with a state file from which an interrupted run resumes.

B rows · P patches · M answer tokens · V vocabulary
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from examples.demo_model.dataset import Batch, SceneDataset, load_batches
from examples.demo_model.optimizer import Schedule, make_optimizer
from examples.demo_model.patch_targets import PatchHead
from pgcli.model.kv_cache import AttentionMasks
from pgcli.model.paligemma import PaliGemma
from pgcli.model.siglip import normalize_pixels
from pgcli.training.losses import prefix_lm_loss
from pgcli.training.packing import IGNORE_INDEX, packed_positions, packed_prefix_lm_mask

STATE = "state.pt"
HALF = 0.5  # PaliGemma's mean and standard deviation of every channel


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of the training: its number of steps and its data.

    Without `has_text`, only the vision tower is trained, on patch targets. With
    `dataset.max_examples` of 1, the mask is PaliGemma's own; with more, examples share an image.
    """

    name: str
    steps: int
    dataset: SceneDataset
    has_text: bool = True
    patch_weight: float = 1.0


def answer_logits(
    model: PaliGemma, patch_BPD: Tensor, batch: Batch, *, image_attends_to_prompt: bool
) -> Tensor:
    """Logits (M, V) of every answer token of a batch, row by row."""
    row, patches = batch.row, patch_BPD.shape[1]
    mask = packed_prefix_lm_mask(
        row.example_T,
        row.is_prefix_T,
        patches=patches,
        image_attends_to_prompt=image_attends_to_prompt,
    )
    positions = packed_positions(row.position_T, patches=patches)
    hidden_BTD = model(patch_BPD, row.token_T, positions, AttentionMasks(mask, mask))
    return model.decoder.logits(hidden_BTD[row.target_T != IGNORE_INDEX])


def exact_match_by_kind(batch: Batch, logits_MV: Tensor) -> dict[str, float]:
    """The share of examples whose every token is predicted, by kind.

    Such an example is what greedy decoding answers, so this is the exact-match rate without
    decoding.
    """
    row = batch.row
    is_wrong_BT = torch.zeros_like(row.is_prefix_T)
    is_answer_BT = row.target_T != IGNORE_INDEX
    is_wrong_BT[is_answer_BT] = logits_MV.argmax(-1) != row.target_T[is_answer_BT]
    wrong: dict[str, list[bool]] = defaultdict(list)
    for row_index, kinds in enumerate(batch.kinds):
        for number, kind in enumerate(kinds, 1):
            is_example_T = row.example_T[row_index] == number
            wrong[kind].append(bool(is_wrong_BT[row_index][is_example_T].any()))
    return {kind: round(1 - sum(w) / len(w), 4) for kind, w in sorted(wrong.items())}


class Trainer:
    """A training run in a folder: weights, optimizer and step are saved and resumed together."""

    def __init__(self, model: PaliGemma, phases: list[Phase], schedule: Schedule, folder: Path):
        self.model = model
        self.phases = phases
        self.schedule = schedule
        self.folder = folder
        self.device = next(model.parameters()).device
        self.head = PatchHead(model.config.decoder.width).to(self.device)
        self.optimizer = make_optimizer(model, self.head)
        self.step = 0
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / STATE).exists():
            self._resume()

    def train(self, *, workers: int, minutes: float, save_every: int, log_every: int) -> bool:
        """Train to the last step or the time limit; return whether the run is complete."""
        start = time.monotonic()
        total = sum(phase.steps for phase in self.phases)
        bar = tqdm(total=total, initial=self.step, unit="step", mininterval=1)
        with bar, (self.folder / "log.jsonl").open("a", encoding="utf-8") as log:
            for phase, batch in self._batches(workers):
                metrics = self._train_step(phase, batch, with_metrics=self.step % log_every == 0)
                self.step += 1
                bar.update()
                if metrics:
                    metrics["seconds"] = round(time.monotonic() - start, 1)
                    log.write(json.dumps(metrics) + "\n")
                    log.flush()
                    bar.set_postfix(phase=phase.name, loss=f"{metrics['loss']:.3f}")
                if self.step % save_every == 0:
                    self.save()
                if time.monotonic() - start > 60 * minutes:
                    break
        self.save()
        return self.step >= total

    def save(self) -> None:
        """Write the state to a temporary file, then rename it over the previous one."""
        state = {
            "model": self.model.state_dict(),
            "head": self.head.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
        }
        unfinished = self.folder / f"{STATE}.tmp"
        torch.save(state, unfinished)
        unfinished.replace(self.folder / STATE)

    def _resume(self) -> None:
        state = torch.load(self.folder / STATE, map_location=self.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.head.load_state_dict(state["head"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]

    def _batches(self, workers: int) -> Any:
        """The phase and the batch of each remaining step."""
        first = 0
        pin_memory = self.device.type == "cuda"
        for phase in self.phases:
            end = first + phase.steps
            if self.step < end:
                for batch in load_batches(
                    phase.dataset, range(self.step, end), workers=workers, pin_memory=pin_memory
                ):
                    yield phase, batch.to(self.device)
            first = end

    def _train_step(self, phase: Phase, batch: Batch, *, with_metrics: bool) -> dict[str, Any]:
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule.at(self.step)
        with self._autocast():
            half = torch.tensor(HALF, device=self.device)
            pixels = normalize_pixels(batch.pixels_BRRC, half, half, torch.float32)
            patch_BPD = self.model.encode(pixels)
            patch_loss, patch_accuracy = self.head.loss(patch_BPD, batch.targets)
            loss, logits_MV = phase.patch_weight * patch_loss, None
            if phase.has_text:
                is_single = phase.dataset.max_examples == 1
                logits_MV = answer_logits(
                    self.model, patch_BPD, batch, image_attends_to_prompt=is_single
                )
                loss = loss + self._answer_loss(phase, batch, logits_MV)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if not with_metrics:
            return {}
        return {
            "step": self.step,
            "phase": phase.name,
            "loss": round(loss.item(), 4),
            "norm": round(float(norm), 3),
            "patches": round(patch_accuracy.item(), 4),
            "right": {} if logits_MV is None else exact_match_by_kind(batch, logits_MV),
        }

    def _answer_loss(self, phase: Phase, batch: Batch, logits_MV: Tensor) -> Tensor:
        is_answer_BT = batch.row.target_T != IGNORE_INDEX
        locations = phase.dataset.vocabulary.locations
        targets, weights = batch.row.target_T[is_answer_BT], batch.row.weight_T[is_answer_BT]
        return prefix_lm_loss(logits_MV, targets, weights, locations)

    def _autocast(self) -> Any:
        """bfloat16 products on hardware that has them; the weights stay float32."""
        has_bfloat16 = self.device.type == "cuda" or torch.cpu._is_amx_tile_supported()
        return torch.autocast(self.device.type, torch.bfloat16) if has_bfloat16 else nullcontext()
