"""The training task of the built-in model: drawings with their examples and patch targets.

B rows · P patches · M answer tokens · V vocabulary
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from examples.demo_model.dataset import Batch, SceneDataset, load_batches
from examples.demo_model.packing import IGNORE_INDEX, packed_positions, packed_prefix_lm_mask
from examples.demo_model.patch_targets import PatchHead
from examples.demo_model.smoothed_loss import smoothed_loss
from pgcli.checkpoints import weights
from pgcli.checkpoints.config import read_config
from pgcli.checkpoints.save import save
from pgcli.model.attention_masks import AttentionMasks
from pgcli.model.paligemma import PaliGemma
from pgcli.model.siglip import normalize_pixels
from pgcli.training.processes import ALONE, Processes
from pgcli.training.task import Loss, MicroBatches

HALF = torch.tensor(0.5)  # PaliGemma's mean and standard deviation of every channel
EVAL_BATCHES = range(8)
PATCH_HEAD = "patch_head.safetensors"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "preprocessor_config.json")


class DemoLearner(nn.Module):
    """The model, and the head that is trained with it and not shipped."""

    def __init__(self, paligemma: PaliGemma):
        super().__init__()
        self.paligemma = paligemma
        self.head = PatchHead(paligemma.config.decoder.width)

    @classmethod
    def load(cls, folder: Path) -> DemoLearner:
        """The model and the head of an earlier run; a new head if the folder has none."""
        model = weights.load(folder, read_config(folder), dtype=torch.float32)
        learner = cls(model.requires_grad_(True))
        if (folder / PATCH_HEAD).exists():
            learner.head.load_state_dict(load_file(folder / PATCH_HEAD))
        return learner

    def save(self, folder: Path, *, dtype: torch.dtype) -> None:
        save(self.paligemma, folder, dtype=dtype)
        save_file(self.head.state_dict(), folder / PATCH_HEAD)


def copy_tokenizer(source: Path, folder: Path) -> None:
    """Copy what a checkpoint has beside its weights."""
    for name in TOKENIZER_FILES if folder != source else ():
        shutil.copyfile(source / name, folder / name)


@dataclass
class DrawingsTask:
    """Learns to answer about drawings.

    Without `has_text`, only the vision tower is trained, on patch targets. With
    `training.max_examples` of 1 the mask is PaliGemma's own; with more, examples share an image.
    `tokenizer` is the folder whose tokenizer is saved with the model, in `dtype`. An update has one
    of the batches of `training` from each of the `processes`, whose rows are computed in
    `length_groups` groups of similar length, if they have text.
    """

    model: DemoLearner
    training: SceneDataset
    validation: SceneDataset
    tokenizer: Path
    has_text: bool = True
    patch_weight: float = 1.0
    length_groups: int = 1
    dtype: torch.dtype = torch.float32
    workers: int = 0
    processes: Processes = ALONE
    micro_batches: MicroBatches = field(default_factory=lambda: MicroBatches(is_fixed=True))

    def batches(self, first: int, stop: int) -> Generator[Batch]:
        count, rank = self.processes.count, self.processes.rank
        indices = range(first * count + rank, stop * count, count)
        yield from load_batches(self.training, indices, workers=self.workers)

    def size(self, batch: Batch) -> int:
        return len(batch.pixels_BRRC)

    def parts(self, batch: Batch, largest: int) -> Iterator[tuple[Batch, float]]:
        """Groups of rows of similar length, and how many rows the loss of each stands for."""
        rows = len(batch.pixels_BRRC)
        if self.length_groups == 1:
            yield batch, rows
            return
        for group, share in batch.groups_of_length(self.length_groups):
            yield group, share * rows

    def loss(self, part: tuple[Batch, float]) -> Loss:
        group, rows = part
        loss, metrics, _ = self._loss(group)
        sums = {name: value * rows for name, value in metrics.items()}
        return Loss(loss * rows, rows, sums)

    def evaluate(self) -> Mapping[str, float]:
        """The loss, and the share of examples of each kind whose every token is predicted."""
        losses, shares = [], []
        right: dict[str, list[bool]] = defaultdict(list)
        for index in EVAL_BATCHES:
            batch = self.validation[index]
            loss, found, logits_MV = self._loss(batch)
            losses.append(loss)
            shares.append(found)
            if logits_MV is not None:
                for kind, is_right in examples_right(batch, logits_MV):
                    right[kind].append(is_right)
        return {
            "loss": torch.stack(losses).mean().item(),
            **{name: sum(one[name] for one in shares) / len(shares) for name in shares[0]},
            **{kind: sum(of_kind) / len(of_kind) for kind, of_kind in sorted(right.items())},
        }

    def rank(self, found: Mapping[str, float]) -> tuple[float, ...]:
        return (-found["loss"],)

    def save(self, folder: Path) -> None:
        self.model.save(folder, dtype=self.dtype)
        copy_tokenizer(self.tokenizer, folder)

    def _loss(self, batch: Batch) -> tuple[Tensor, dict[str, float], Tensor | None]:
        """The loss, its metrics, and the logits (M, V) of the answers' tokens; in bfloat16."""
        with torch.autocast("cpu", torch.bfloat16):
            pixels = normalize_pixels(batch.pixels_BRRC, HALF, HALF, torch.float32)
            patch_BPD = self.model.paligemma.encode(pixels)
            patch_loss, found = self.model.head.loss(patch_BPD, batch.targets)
            if not self.has_text:
                return patch_loss, found, None
            is_single = self.training.max_examples == 1
            logits_MV = answer_logits(
                self.model.paligemma, patch_BPD, batch, image_attends_to_prompt=is_single
            )
            is_answer_BT = batch.row.target_T != IGNORE_INDEX
            target_M, weight_M = batch.row.target_T[is_answer_BT], batch.row.weight_T[is_answer_BT]
            locations = self.training.vocabulary.locations
            answer_loss = smoothed_loss(logits_MV, target_M, weight_M, locations)
        found["answer_loss"] = answer_loss.item()
        return self.patch_weight * patch_loss + answer_loss, found, logits_MV


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


def examples_right(batch: Batch, logits_MV: Tensor) -> Generator[tuple[str, bool]]:
    """The kind of each example, and whether its every token is predicted.

    Such an example is what greedy decoding answers, so the share of them is the exact-match rate
    without decoding.
    """
    row = batch.row
    is_wrong_BT = torch.zeros_like(row.is_prefix_T)
    is_answer_BT = row.target_T != IGNORE_INDEX
    is_wrong_BT[is_answer_BT] = logits_MV.argmax(-1) != row.target_T[is_answer_BT]
    for row_index, kinds in enumerate(batch.kinds):
        for number, kind in enumerate(kinds, 1):
            is_example_T = row.example_T[row_index] == number
            yield kind, not bool(is_wrong_BT[row_index][is_example_T].any())
