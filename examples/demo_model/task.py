"""What the built-in model learns: batches of drawings, their loss, and how the model is saved.

B rows, each of one image · P patches · M answer tokens · R resolution · C channels
"""

from __future__ import annotations

import shutil
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from examples.demo_model.examples import Example, MaskCodes, training_examples
from examples.demo_model.lettered import lettered_scene, page_of_words
from examples.demo_model.packing import (
    PackedRow,
    TokenizedExample,
    pack,
    packed_mask,
    packed_positions,
    smoothed_loss,
)
from examples.demo_model.patch_targets import PatchHead, patch_targets
from examples.demo_model.phases import Phase
from examples.demo_model.scenes import VALIDATION_SEEDS, Scene, render, scaled_size
from pgcli.checkpoints import weights
from pgcli.checkpoints.config import read_config
from pgcli.checkpoints.save import save
from pgcli.engine.tokenizer import Tokenizer
from pgcli.model.attention_masks import AttentionMasks
from pgcli.model.paligemma import PaliGemma
from pgcli.model.siglip import normalize_pixels
from pgcli.training.processes import ALONE, Processes
from pgcli.training.task import Loss, TrainingTask

HALF = torch.tensor(0.5)  # PaliGemma's mean and standard deviation of every channel
LONGER_SIDE = (120, 200)  # pixels; the scenes' own sizes are larger and take longer to draw
SHORT_ANSWER_WEIGHT = 4  # loss weight of an answer's first token, except in captions
EVAL_BATCHES = range(8)
PATCH_HEAD = "patch_head.safetensors"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "preprocessor_config.json")


class Batch(NamedTuple):
    """Images, a packed row of examples about each, and their patch targets."""

    pixels_BRRC: Tensor
    row: PackedRow
    target_BPX: Tensor


@dataclass(frozen=True)
class SceneDataset(Dataset[Batch]):
    """Batches of scenes with consecutive seeds; a batch follows from its index.

    `codes` are those of masks. Examples that fit are packed into rows as the phase says; without
    examples, a batch has only images and patch targets.
    """

    phase: Phase
    vocabulary: Tokenizer
    stop_token: int
    seeds: range
    resolution: int
    patches_per_side: int
    batch_size: int
    codes: MaskCodes

    def __len__(self) -> int:
        return len(self.seeds) // (self.batch_size * self.phase.scene_choices)

    def __getitem__(self, index: int) -> Batch:
        numbers = range(index * self.batch_size, (index + 1) * self.batch_size)
        pixels, rows, targets = zip(*map(self._sample, numbers), strict=True)
        return Batch(
            torch.from_numpy(numpy.stack(pixels)), PackedRow.of(rows), torch.stack(targets)
        )

    def _sample(self, number: int) -> tuple[numpy.ndarray, Tensor, Tensor]:
        phase, first = self.phase, number * self.phase.scene_choices
        seeds = self.seeds[first : first + phase.scene_choices]
        rng = Random(f"lessons {seeds[0]}")  # another text would draw other examples
        draw = rng.choices((Scene.from_seed, lettered_scene, page_of_words), phase.scene_rates)[0]
        scene = max(map(draw, seeds), key=_objects_and_letters)
        pixels = square_pixels(scene, self.resolution, rng)
        examples = training_examples(scene, self.codes, rng) if phase.max_examples else []
        if phase.max_examples == 1:
            rates = [phase.example_rates.get(example.kind, 1.0) for example in examples]
            chosen = rng.choices(examples, rates)[0]
            examples = [chosen, *(example for example in examples if example is not chosen)]
        tokenized = [self._tokenize(example) for example in examples]
        row = pack(tokenized, slots=phase.text_slots, max_examples=phase.max_examples)
        return pixels, row, patch_targets(scene, self.patches_per_side)

    def _tokenize(self, example: Example) -> TokenizedExample:
        return TokenizedExample(
            self.vocabulary.encode_prompt(example.prefix),
            [*self.vocabulary.encode_answer(example.suffix), self.stop_token],
            1 if example.kind == "caption" else SHORT_ANSWER_WEIGHT,
        )


def square_pixels(scene: Scene, resolution: int, rng: Random) -> numpy.ndarray:
    """The scene in a random size, as a square image (R, R, C) of the model's resolution."""
    image = render(scene, *scaled_size(scene, rng.randint(*LONGER_SIDE)))
    return numpy.asarray(image.resize((resolution, resolution), Image.Resampling.BICUBIC))


def _objects_and_letters(scene: Scene) -> int:
    return len(scene.objects) + sum(len(word.text) for word in scene.words)


class DemoLearner(nn.Module):
    """The model, and the head that is trained with it and not shipped."""

    def __init__(self, paligemma: PaliGemma):
        super().__init__()
        self.paligemma = paligemma
        self.head = PatchHead(paligemma.config.decoder.width)

    @classmethod
    def load(cls, *folders: Path) -> DemoLearner:
        """The model and the head of an earlier run, or the mean of those of several runs.

        What a run learned last from a few rows is noise, of which the mean has less, while its loss
        is no higher, as long as the runs are near each other (Izmailov et al., 2018,
        arXiv:1803.05407).
        """
        learners = []
        for folder in folders:
            model = weights.load(folder, read_config(folder), dtype=torch.float32)
            learner = cls(model.requires_grad_(True))
            learner.head.load_state_dict(load_file(folder / PATCH_HEAD))
            learners.append(learner)
        with torch.no_grad():
            for values in zip(*(learner.parameters() for learner in learners), strict=True):
                values[0].copy_(torch.stack(values).mean(0))
        return learners[0]

    def save(self, folder: Path, tokenizer: Path, dtype: torch.dtype) -> None:
        """Write the model, the head, and the tokenizer's files that are in another folder."""
        save(self.paligemma, folder, dtype=dtype)
        save_file(self.head.state_dict(), folder / PATCH_HEAD)
        for name in TOKENIZER_FILES if folder != tokenizer else ():
            shutil.copyfile(tokenizer / name, folder / name)


@dataclass
class DrawingsTask(TrainingTask):
    """Learns to answer about drawings, in one phase; without examples, the vision tower alone.

    With one example in a row the mask is PaliGemma's own; with more, they share an image.
    `tokenizer` is the folder whose tokenizer is saved with the model. An update has one of the
    batches of `training` from each of the `processes`; `workers` draw.
    """

    model: DemoLearner
    training: SceneDataset
    tokenizer: Path
    workers: int = 0
    processes: Processes = ALONE

    def batches(self, first: int, stop: int) -> Generator[Batch]:
        count, rank = self.processes.count, self.processes.rank
        numbers = range(first * count + rank, stop * count, count)
        yield from load_batches(self.training, numbers, workers=self.workers)

    def loss(self, batch: Batch) -> Loss:
        loss, metrics = self._loss(batch)
        rows = len(batch.pixels_BRRC)
        return Loss(loss * rows, rows, {name: value * rows for name, value in metrics.items()})

    def evaluate(self) -> Mapping[str, float]:
        """The mean loss and metrics of drawings that are not trained on."""
        validation = replace(self.training, seeds=VALIDATION_SEEDS)
        metrics = [
            {"loss": loss.item(), **values}
            for loss, values in (self._loss(validation[index]) for index in EVAL_BATCHES)
        ]
        return {name: sum(row[name] for row in metrics) / len(metrics) for name in metrics[0]}

    def save(self, folder: Path) -> None:
        self.model.save(folder, self.tokenizer, self.training.phase.dtype)

    def _loss(self, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        """The loss and its metrics, computed in bfloat16."""
        phase, model, row = self.training.phase, self.model.paligemma, batch.row
        with torch.autocast("cpu", torch.bfloat16):
            pixels = normalize_pixels(batch.pixels_BRRC, HALF, HALF, torch.float32)
            patch_BPD = model.encode(pixels)
            patch_loss, metrics = self.model.head.loss(patch_BPD, batch.target_BPX)
            if not phase.max_examples:
                return patch_loss, metrics
            patches = patch_BPD.shape[1]
            mask = packed_mask(
                row, patches=patches, image_attends_to_prompt=phase.max_examples == 1
            )
            positions = packed_positions(row, patches=patches)
            hidden_BTD = model(patch_BPD, row.token_BT, positions, AttentionMasks(mask, mask))
            is_answer_BT = row.weight_BT > 0
            logits_MV = model.decoder.logits(hidden_BTD[is_answer_BT])
            answer_loss = smoothed_loss(
                logits_MV,
                row.target_BT[is_answer_BT],
                row.weight_BT[is_answer_BT].float(),
                self.training.vocabulary.locations,
            )
        metrics["answer_loss"] = answer_loss.item()
        return phase.patch_weight * patch_loss + answer_loss, metrics


def load_batches(dataset: Dataset[Any], numbers: range, *, workers: int) -> Generator[Any]:
    """The batches with these numbers, prefetched by worker processes."""
    yield from DataLoader(
        dataset,
        batch_size=None,
        sampler=numbers,
        num_workers=workers,
        prefetch_factor=4 if workers else None,
    )
