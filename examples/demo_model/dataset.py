"""Batches of drawings, packed examples and patch targets, made ahead by worker processes.

B rows, each of one image · C channels · R resolution
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from examples.demo_model import packing, patch_targets
from examples.demo_model.examples import Example
from examples.demo_model.lettered import lettered_scene, page_of_words
from examples.demo_model.packing import PackedRow, TokenizedExample, pack
from examples.demo_model.patch_targets import PatchTargets
from examples.demo_model.render import render, scaled_size
from examples.demo_model.scenes import Scene
from examples.demo_model.training_examples import MaskCodes, training_examples
from pgcli.engine.tokenizer import Tokenizer

Sample = tuple[numpy.ndarray, PackedRow[list[float]], PatchTargets[numpy.ndarray], tuple[str, ...]]
LONGER_SIDE = (120, 200)  # pixels; the scenes' own sizes are larger and take longer to draw
SHORT_ANSWER_WEIGHT = 4.0  # loss weight of an answer's first token, except in captions


@dataclass(frozen=True)
class Batch:
    """Images, a packed row of examples about each, their patch targets and the examples' kinds."""

    pixels_BRRC: Tensor
    row: PackedRow[Tensor]
    targets: PatchTargets[Tensor]
    kinds: tuple[tuple[str, ...], ...]

    def groups_of_length(self, count: int) -> Iterator[tuple[Batch, float]]:
        """The rows in groups of similar length, padded less; their shares of the loss weight."""
        length_B = (self.row.example_T > 0).sum(1)
        for index_G in length_B.argsort(stable=True).chunk(count):
            slots = int(length_B[index_G].max())
            group = Batch(
                self.pixels_BRRC[index_G],
                PackedRow(*(column[index_G, :slots] for column in self.row)),
                PatchTargets(*(target[index_G] for target in self.targets)),
                tuple(self.kinds[row] for row in index_G.tolist()),
            )
            yield group, float(group.row.weight_T.sum() / self.row.weight_T.sum())


@dataclass(frozen=True)
class SceneDataset(Dataset[Batch]):
    """Batches of scenes with consecutive seeds; a batch follows from its index.

    `scene_rates` says how many drawings have no word, one word, and lines of words; of
    `scene_choices` drawings the one with the most objects and letters is taken. `codes` are those
    of masks.

    Up to `max_examples` examples that fit are packed into a row of `text_slots` tokens. If
    `max_examples` is 0, a batch has only images and patch targets. If it is 1, `example_rates` says
    how often an example is of each kind, relative to kinds that it does not name.
    """

    vocabulary: Tokenizer
    eos: int
    seeds: range
    resolution: int
    patches_per_side: int
    batch_size: int
    max_examples: int
    text_slots: int
    scene_rates: tuple[int, int, int]
    codes: MaskCodes
    example_rates: Mapping[str, float] = field(default_factory=dict)
    scene_choices: int = 1

    def __len__(self) -> int:
        return len(self.seeds) // (self.batch_size * self.scene_choices)

    def __getitem__(self, index: int) -> Batch:
        numbers = range(index * self.batch_size, (index + 1) * self.batch_size)
        samples = [self._sample(number) for number in numbers]
        pixels, rows, targets, kinds = zip(*samples, strict=True)
        return Batch(
            torch.from_numpy(numpy.stack(pixels)),
            packing.collate(rows, max(len(row.token_T) for row in rows)),
            patch_targets.collate(targets),
            kinds,
        )

    def _sample(self, number: int) -> Sample:
        first = number * self.scene_choices
        seeds = self.seeds[first : first + self.scene_choices]
        rng = Random(f"lessons {seeds[0]}")  # another text would draw other examples
        draw = rng.choices((Scene.from_seed, lettered_scene, page_of_words), self.scene_rates)[0]
        scene = max(map(draw, seeds), key=_objects_and_letters)
        pixels = square_pixels(scene, self.resolution, rng)
        examples = training_examples(scene, self.codes, rng) if self.max_examples else []
        if self.max_examples == 1:
            examples = _with_one_first(examples, self.example_rates, rng)
        tokenized = [self._tokenize(example) for example in examples]
        row, packed = pack(tokenized, slots=self.text_slots, max_examples=self.max_examples)
        targets = patch_targets.patch_targets(scene, self.patches_per_side)
        return pixels, row, targets, tuple(examples[n].kind for n in packed)

    def _tokenize(self, example: Example) -> TokenizedExample:
        return TokenizedExample(
            self.vocabulary.encode_prompt(example.prefix),
            [*self.vocabulary.encode_answer(example.suffix), self.eos],
            1.0 if example.kind == "caption" else SHORT_ANSWER_WEIGHT,
        )


def square_pixels(scene: Scene, resolution: int, rng: Random) -> numpy.ndarray:
    """The scene in a random size, as a square image (R, R, C) of the model's resolution."""
    image = render(scene, *scaled_size(scene, rng.randint(*LONGER_SIDE)))
    return numpy.asarray(image.resize((resolution, resolution), Image.Resampling.BICUBIC))


def _objects_and_letters(scene: Scene) -> int:
    return len(scene.objects) + sum(len(word.text) for word in scene.words)


def _with_one_first(
    examples: list[Example], rates: Mapping[str, float], rng: Random
) -> list[Example]:
    """Any example first, each kind as often as the rates say."""
    chosen = rng.choices(examples, [rates.get(x.kind, 1.0) for x in examples])[0]
    return [chosen, *(example for example in examples if example is not chosen)]


def load_batches(dataset: SceneDataset, indices: range, *, workers: int) -> Iterator[Batch]:
    """The batches of the indices, prefetched by worker processes."""
    loader: DataLoader[Any] = DataLoader(
        dataset,
        batch_size=None,
        sampler=indices,
        num_workers=workers,
        prefetch_factor=4 if workers else None,
    )
    yield from loader
