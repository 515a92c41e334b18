"""Training data of the built-in model: examples about drawings, several packed into a row.

B rows, each of one image · P patches · T text tokens · S all slots · M answer tokens ·
V vocabulary · O offsets · R resolution · C channels
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from examples.demo_model.model import DemoLearner, new_model, patch_targets
from examples.demo_model.questions import Example, training_examples
from examples.demo_model.scenes import (
    TOKENIZER_SEEDS,
    TRAINING_SEEDS,
    VALIDATION_SEEDS,
    Scene,
    lettered_scene,
    page_of_words,
    render,
)
from pgcli.checkpoints.config import read_config
from pgcli.checkpoints.find import BUILTIN
from pgcli.engine.tokenizer import Tokenizer
from pgcli.model.attention import AttentionMasks
from pgcli.model.siglip import normalize_pixels
from pgcli.training.processes import ALONE, Processes
from pgcli.training.task import Loss, TrainingTask

EOS = 1
LONGER_SIDE = (120, 200)  # pixels; smaller than the scenes' own sizes, and faster to draw
SHORT_ANSWER_WEIGHT = 4  # loss weight of an answer's first token, except in captions
SLOTS = 128  # the most text tokens of a row
SMOOTHING_STD = 1.5  # in location tokens; neighbours of the true location share its weight
SMOOTHING_RADIUS = 4


@dataclass(frozen=True)
class Phase:
    """The training data and the duration of a phase.

    A phase starts with the mean of the `weights` of earlier ones. Up to `max_examples` about a
    drawing are packed into a row; with 0, only the vision tower learns, from patch targets.
    """

    steps: int
    rate: float = 0.0
    weights: Sequence[str] = ()
    max_examples: int = 0
    batch_size: int = 16  # drawings per step and process
    eval_every: int = 100
    scene_rates: Sequence[int] = (50, 50, 0)  # without a word, with one, with many
    scene_choices: int = 1  # take the drawing with the most objects and letters of so many
    #: With one example in a row: how often it is of each kind, relative to kinds without a rate.
    example_rates: Mapping[str, float] = field(default_factory=dict)
    patch_weight: float = 0.3  # of the patch targets' loss; the answers' is 1
    first_drawing: int = 0  # no two phases share drawings


#: The ids of a prompt (`bos` to newline) and of its answer (with the stop token), and the loss
#: weight of the answer's first token; later tokens have a weight of 1.
TokenizedExample = tuple[Sequence[int], Sequence[int], int]


class PackedRow(NamedTuple):
    """Examples one after another, each `[bos prompt newline answer]`; padding is 0 everywhere.

    `example` numbers them from 1; `position` counts the tokens of each from 1. `target` is the next
    token and `weight` its loss weight, which is 0 for tokens outside of answers.
    """

    token_BT: Tensor
    example_BT: Tensor
    position_BT: Tensor
    is_prefix_BT: Tensor
    target_BT: Tensor
    weight_BT: Tensor

    @classmethod
    def of(cls, rows: Sequence[Tensor]) -> PackedRow:
        """The rows that `pack` made, padded on the right."""
        return cls(*pad_sequence([*rows], batch_first=True).unbind(-1))


def pack(examples: Sequence[TokenizedExample], max_examples: int) -> Tensor:
    """The columns of a PackedRow (T, 6) with the first `max_examples` that fit into the slots."""
    rows: list[Tensor] = []
    for prefix, suffix, weight in examples:
        length = len(prefix) + len(suffix) - 1
        if sum(map(len, rows)) + length > SLOTS or len(rows) == max_examples:
            continue
        unscored = [0] * (len(prefix) - 1)
        columns = (
            [*prefix, *suffix[:-1]],
            [len(rows) + 1] * length,
            range(1, length + 1),
            [1] * len(prefix) + [0] * (length - len(prefix)),
            [*unscored, *suffix],
            [*unscored, weight, *[1] * (len(suffix) - 1)],
        )
        rows.append(torch.tensor(columns).T)
    return torch.cat(rows) if rows else torch.zeros(0, 6, dtype=torch.long)


class Batch(NamedTuple):
    """Images, a packed row of examples about each, and their patch targets."""

    pixels_BRRC: Tensor
    row: PackedRow
    target_BPX: Tensor


@dataclass(frozen=True)
class Drawings(Dataset[Batch]):
    """Batches of drawings with consecutive seeds; the index determines a batch."""

    phase: Phase
    vocabulary: Tokenizer
    resolution: int = 112
    patches_per_side: int = 8
    seeds: range = TRAINING_SEEDS

    def __getitem__(self, index: int) -> Batch:
        size = self.phase.batch_size
        numbers = range(index * size, (index + 1) * size)
        pixels, rows, targets = zip(*map(self._sample, numbers), strict=True)
        images = torch.from_numpy(numpy.stack(pixels))
        return Batch(images, PackedRow.of(rows), torch.stack(targets))

    def _sample(self, number: int) -> tuple[numpy.ndarray, Tensor, Tensor]:
        phase, first = self.phase, number * self.phase.scene_choices
        seeds = self.seeds[phase.first_drawing :][first : first + phase.scene_choices]
        rng = Random(f"lessons {seeds[0]}")  # another text would draw different examples
        draw = rng.choices((Scene.from_seed, lettered_scene, page_of_words), phase.scene_rates)[0]
        scene = max(map(draw, seeds), key=_objects_and_letters)
        pixels = square_pixels(scene, self.resolution, rng)
        examples = training_examples(scene, rng) if phase.max_examples else []
        if phase.max_examples == 1:
            rates = [phase.example_rates.get(example.kind, 1.0) for example in examples]
            chosen = rng.choices(examples, rates)[0]
            examples = [chosen, *(example for example in examples if example is not chosen)]
        row = pack([self._tokenize(example) for example in examples], phase.max_examples)
        return pixels, row, patch_targets(scene, self.patches_per_side)

    def _tokenize(self, example: Example) -> TokenizedExample:
        prompt = self.vocabulary.encode_prompt(example.prefix)
        answer = [*self.vocabulary.encode_answer(example.suffix), EOS]
        return prompt, answer, 1 if example.kind == "caption" else SHORT_ANSWER_WEIGHT


def square_pixels(scene: Scene, resolution: int, rng: Random) -> numpy.ndarray:
    """The scene in a random size, as a square image (R, R, C) of the model's resolution."""
    image = render(scene, rng.randint(*LONGER_SIDE))
    return numpy.asarray(image.resize((resolution, resolution), Image.Resampling.BICUBIC))


def first_learner() -> DemoLearner:
    """The model and the head at the start of training, from patches of pages of words."""
    config, seeds = read_config(BUILTIN), TOKENIZER_SEEDS[:256]
    side = config.vision.resolution
    pages = [square_pixels(page_of_words(seed), side, Random(seed)) for seed in seeds]
    return DemoLearner(new_model(config, model_pixels(torch.from_numpy(numpy.stack(pages)))))


def _objects_and_letters(scene: Scene) -> int:
    return len(scene.objects) + sum(len(word.text) for word in scene.words)


def model_pixels(pixels_BRRC: Tensor) -> Tensor:
    """The images (B, C, R, R) as inputs of the vision tower."""
    half = torch.tensor(0.5)  # PaliGemma's mean and standard deviation of every channel
    return normalize_pixels(pixels_BRRC, half, half, torch.float32)


@dataclass
class DrawingsTask(TrainingTask):
    """Learns to answer about drawings, in one phase; without examples, only the vision tower.

    With one example in a row the mask is PaliGemma's own; with more, they share an image. An update
    has one batch of `training` from each of the `processes`; `workers` draw.
    """

    model: DemoLearner
    training: Drawings
    workers: int = 0
    processes: Processes = ALONE

    def batches(self, first: int, stop: int) -> Generator[Batch]:
        count, rank = self.processes.count, self.processes.rank
        yield from DataLoader(
            self.training,
            batch_size=None,
            sampler=range(first * count + rank, stop * count, count),
            num_workers=self.workers,
            prefetch_factor=4 if self.workers else None,
        )

    def loss(self, batch: Batch) -> Loss:
        rows = len(batch.pixels_BRRC)
        return Loss(self._mean_loss(batch) * rows, rows)

    def evaluate(self) -> Mapping[str, float]:
        """The mean loss of eight batches of drawings outside the training data."""
        phase = replace(self.training.phase, first_drawing=0)
        validation = replace(self.training, phase=phase, seeds=VALIDATION_SEEDS)
        losses = [self._mean_loss(validation[index]).item() for index in range(8)]
        return {"loss": sum(losses) / len(losses)}

    def save(self, folder: Path) -> None:
        phase = self.training.phase
        is_exact = phase.steps and phase.max_examples != 1  # shipped weights take half the space
        self.model.save(folder, torch.float32 if is_exact else torch.bfloat16)

    def _mean_loss(self, batch: Batch) -> Tensor:
        """The mean loss of the rows, computed in bfloat16."""
        phase, model, row = self.training.phase, self.model.paligemma, batch.row
        with torch.autocast("cpu", torch.bfloat16):
            patch_BPD = model.encode(model_pixels(batch.pixels_BRRC))
            patch_loss = phase.patch_weight * self.model.head.loss(patch_BPD, batch.target_BPX)
            if not phase.max_examples:
                return patch_loss
            patches, is_single = patch_BPD.shape[1], phase.max_examples == 1
            mask = packed_mask(row, patches=patches, image_attends_to_prompt=is_single)
            positions = packed_positions(row, patches=patches)
            hidden_BTD = model(patch_BPD, row.token_BT, positions, AttentionMasks(mask, mask))
            is_answer_BT = row.weight_BT > 0
            return patch_loss + smoothed_loss(
                model.decoder.logits(hidden_BTD[is_answer_BT]),
                row.target_BT[is_answer_BT],
                row.weight_BT[is_answer_BT].float(),
                self.training.vocabulary.locations,
            )


def packed_mask(row: PackedRow, *, patches: int, image_attends_to_prompt: bool) -> Tensor:
    """The attention mask (B, 1, S, S) that keeps the examples of a row apart.

    Every slot attends to the image; a token attends to the whole prompt of its own example and to
    the earlier tokens of its answer. In PaliGemma the image attends to the prompt too, which is
    possible only with one example per row; with more, the image attends only to itself, so that its
    slots are computed once per row and not once per example.
    """
    example_BT, is_prefix_BT = row.example_BT, row.is_prefix_BT.bool()
    slots = example_BT.shape[1]
    same_BTT = (example_BT[:, :, None] == example_BT[:, None, :]) & (example_BT > 0)[:, None, :]
    causal_TT = torch.ones(slots, slots, dtype=torch.bool).tril()
    text_BTT = same_BTT & (is_prefix_BT[:, None, :] | causal_TT)
    image_BPT = (is_prefix_BT & image_attends_to_prompt)[:, None, :].expand(-1, patches, -1)
    text_keys_BST = torch.cat([image_BPT, text_BTT], dim=1)
    image_keys_BSP = text_keys_BST.new_ones(len(example_BT), patches + slots, patches)
    return torch.cat([image_keys_BSP, text_keys_BST], dim=2)[:, None]


def packed_positions(row: PackedRow, *, patches: int) -> Tensor:
    """Positions (B, S): the text of every example starts after the image."""
    image_BP = torch.arange(1, patches + 1).expand(len(row.position_BT), -1)
    return torch.cat([image_BP, row.position_BT + patches], dim=1)


def smoothed_loss(
    logits_MV: Tensor, target_M: Tensor, weight_M: Tensor, locations: range
) -> Tensor:
    """The weighted mean cross-entropy of the answer tokens.

    Targets that are location tokens are smoothed with a Gaussian over the neighbouring locations,
    since a box that is off by one location is almost right.
    """
    log_probability_MV = F.log_softmax(logits_MV.float(), dim=-1)
    hard_M = -log_probability_MV.gather(1, target_M[:, None])[:, 0]
    offset_O = torch.arange(-SMOOTHING_RADIUS, SMOOTHING_RADIUS + 1)
    gaussian_O = torch.exp(-0.5 * (offset_O / SMOOTHING_STD) ** 2)
    neighbour_MO = target_M[:, None] + offset_O
    is_inside_MO = (neighbour_MO >= locations.start) & (neighbour_MO < locations.stop)
    share_MO = gaussian_O * is_inside_MO
    share_MO = share_MO / share_MO.sum(1, keepdim=True).clamp(min=1e-9)
    neighbour_MO = neighbour_MO.clamp(locations.start, locations.stop - 1)
    smooth_M = -(log_probability_MV.gather(1, neighbour_MO) * share_MO).sum(1)
    is_location_M = (target_M >= locations.start) & (target_M < locations.stop)
    loss_M = torch.where(is_location_M, smooth_M, hard_M)
    return (loss_M * weight_M).sum() / weight_M.sum()
