"""The training loop: batches in, a better model out; stops and goes on where it stood.

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

from pgcli.model.cache import AttentionMasks
from pgcli.model.paligemma import PaliGemma
from pgcli.model.siglip import normalise
from pgcli.training.beginning import Schedule, optimizer_for
from pgcli.training.data import Batch, Drawings, batches
from pgcli.training.losses import answer_loss
from pgcli.training.patches import PatchHead
from pgcli.training.rows import IGNORED, positions, who_sees_whom

STATE = "state.pt"
HALF = 0.5  # PaliGemma's mean and standard deviation of every channel


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of the training: its number of steps and what they learn from.

    `text` off trains the eye alone on its patches; `drawings.lessons_each` of 1 trains under
    PaliGemma's own mask, more of them share one reading of the image.
    """

    name: str
    steps: int
    drawings: Drawings
    text: bool = True
    patch_weight: float = 1.0


def answer_pass(model: PaliGemma, patch_BPD: Tensor, batch: Batch, *, exact: bool) -> Tensor:
    """Logits (M, V) of every answer token of a batch, row by row."""
    row, patches = batch.row, patch_BPD.shape[1]
    mask = who_sees_whom(row.lesson_T, row.is_prefix_T, patches=patches, image_sees_prompt=exact)
    hidden_BTD = model(
        patch_BPD, row.token_T, positions(row.place_T, patches=patches), AttentionMasks(mask, mask)
    )
    return model.decoder.logits(hidden_BTD[row.target_T != IGNORED])


def entirely_right(batch: Batch, logits_MV: Tensor) -> dict[str, float]:
    """The share of lessons answered without a fault, by kind.

    A lesson whose every token is the likeliest after the true ones before it is what greedy
    decoding answers, so this is the exact-match rate without decoding.
    """
    row = batch.row
    wrong_BT = torch.zeros_like(row.is_prefix_T)
    is_answer_BT = row.target_T != IGNORED
    wrong_BT[is_answer_BT] = logits_MV.argmax(-1) != row.target_T[is_answer_BT]
    faults: dict[str, list[bool]] = defaultdict(list)
    for place, kinds in enumerate(batch.kinds):
        for number, kind in enumerate(kinds, 1):
            faults[kind].append(bool(wrong_BT[place][row.lesson_T[place] == number].any()))
    return {kind: round(1 - sum(f) / len(f), 4) for kind, f in sorted(faults.items())}


class Run:
    """A training run in a folder: weights, optimizer and step, saved together and resumed alike."""

    def __init__(self, model: PaliGemma, phases: list[Phase], schedule: Schedule, folder: Path):
        self.model = model
        self.phases = phases
        self.schedule = schedule
        self.folder = folder
        self.device = next(model.parameters()).device
        self.head = PatchHead(model.config.decoder.width).to(self.device)
        self.optimizer = optimizer_for(model, self.head)
        self.step = 0
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / STATE).exists():
            self._resume()

    def train(self, *, workers: int, minutes: float, save_every: int, log_every: int) -> bool:
        """Go on to the last step, or until the time is up; True where the run is complete."""
        start = time.monotonic()
        total = sum(phase.steps for phase in self.phases)
        bar = tqdm(total=total, initial=self.step, unit="step", mininterval=1)
        with bar, (self.folder / "log.jsonl").open("a", encoding="utf-8") as log:
            for phase, batch in self._batches(workers):
                report = self._learn(phase, batch, told=self.step % log_every == 0)
                self.step += 1
                bar.update()
                if report:
                    report["seconds"] = round(time.monotonic() - start, 1)
                    log.write(json.dumps(report) + "\n")
                    log.flush()
                    bar.set_postfix(phase=phase.name, loss=f"{report['loss']:.3f}")
                if self.step % save_every == 0:
                    self.save()
                if time.monotonic() - start > 60 * minutes:
                    break
        self.save()
        return self.step >= total

    def save(self) -> None:
        """Write the whole state under another name, then put it in the place of the last one."""
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
        """Each step's phase and batch, from the step where the run stands."""
        first = 0
        pinned = self.device.type == "cuda"
        for phase in self.phases:
            end = first + phase.steps
            if self.step < end:
                numbers = {"first": self.step, "end": end}
                for batch in batches(phase.drawings, **numbers, workers=workers, pinned=pinned):
                    yield phase, batch.to(self.device)
            first = end

    def _learn(self, phase: Phase, batch: Batch, *, told: bool) -> dict[str, Any]:
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule.at(self.step)
        with self._precision():
            half = torch.tensor(HALF, device=self.device)
            pixels = normalise(batch.pixels_BRRC, half, half, torch.float32)
            patch_BPD = self.model.encode(pixels)
            patch_loss, patches_right = self.head.loss(patch_BPD, batch.under)
            loss, logits_MV = phase.patch_weight * patch_loss, None
            if phase.text:
                exact = phase.drawings.lessons_each == 1
                logits_MV = answer_pass(self.model, patch_BPD, batch, exact=exact)
                loss = loss + self._answer_loss(phase, batch, logits_MV)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if not told:
            return {}
        return {
            "step": self.step,
            "phase": phase.name,
            "loss": round(loss.item(), 4),
            "norm": round(float(norm), 3),
            "patches": round(patches_right.item(), 4),
            "right": {} if logits_MV is None else entirely_right(batch, logits_MV),
        }

    def _answer_loss(self, phase: Phase, batch: Batch, logits_MV: Tensor) -> Tensor:
        is_answer_BT = batch.row.target_T != IGNORED
        locations = phase.drawings.vocabulary.locations
        targets, weights = batch.row.target_T[is_answer_BT], batch.row.weight_T[is_answer_BT]
        return answer_loss(logits_MV, targets, weights, locations)

    def _precision(self) -> Any:
        """bfloat16 products where the device has units for them; the weights stay float32."""
        fast = self.device.type == "cuda" or torch.cpu._is_amx_tile_supported()
        return torch.autocast(self.device.type, torch.bfloat16) if fast else nullcontext()
