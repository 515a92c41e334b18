"""Batches of drawings, packed examples and patch targets, made ahead by worker processes.

B rows, each of one image · C channels · R resolution
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from examples.demo_model import patch_targets
from examples.demo_model.examples import Example
from examples.demo_model.lettered import lettered_scene, page_of_words
from examples.demo_model.patch_targets import PatchTargets
from examples.demo_model.render import render, scaled_size
from examples.demo_model.scenes import Scene
from examples.demo_model.training_examples import MaskCodes, training_examples
from pgcli.engine.tokenizer import Tokenizer
from pgcli.training import packing
from pgcli.training.packing import PackedRow, TokenizedExample, pack

Sample = tuple[numpy.ndarray, PackedRow[list[float]], PatchTargets[numpy.ndarray], tuple[str, ...]]
LONGER_SIDE = (120, 200)  # pixels; the scenes' own sizes are larger and take longer to draw
#: How often a kind is the only example of its drawing, relative to other kinds of questions.
EXAMPLE_RATES = {"ocr": 10.0, "segment": 6.0, "caption": 6.0, "count": 2.0, "detect": 1.5}
SHORT_ANSWER_WEIGHT = 4.0  # loss weight of an answer's first token, except in captions


@dataclass(frozen=True)
class Batch:
    """Images, a packed row of examples about each, their patch targets and the examples' kinds."""

    pixels_BRRC: Tensor
    row: PackedRow[Tensor]
    targets: PatchTargets[Tensor]
    kinds: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class SceneDataset(Dataset[Batch]):
    """Batches of scenes with consecutive seeds; a batch follows from its index.

    `scene_rates` says how many drawings have no word, one word, and lines of words; `codes` are
    those of masks.

    Up to `max_examples` examples that fit are packed into a row of `text_slots` tokens. If
    `max_examples` is 0, a batch has only images and patch targets.
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

    def __len__(self) -> int:
        return len(self.seeds) // self.batch_size

    def __getitem__(self, index: int) -> Batch:
        first = index * self.batch_size
        samples = [self._sample(seed) for seed in self.seeds[first : first + self.batch_size]]
        pixels, rows, targets, kinds = zip(*samples, strict=True)
        return Batch(
            torch.from_numpy(numpy.stack(pixels)),
            packing.collate(rows, max(len(row.token_T) for row in rows)),
            patch_targets.collate(targets),
            kinds,
        )

    def _sample(self, seed: int) -> Sample:
        rng = Random(f"lessons {seed}")  # another text would draw other examples
        scenes = (Scene.from_seed, lettered_scene, page_of_words)
        scene = rng.choices(scenes, self.scene_rates)[0](seed)
        pixels = square_pixels(scene, self.resolution, rng)
        examples = training_examples(scene, self.codes, rng) if self.max_examples else []
        if self.max_examples == 1:
            examples = _with_one_first(examples, rng)
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


def _with_one_first(examples: list[Example], rng: Random) -> list[Example]:
    """Any example first, but those whose answers are long more often than others."""
    chosen = rng.choices(examples, [EXAMPLE_RATES.get(x.kind, 1.0) for x in examples])[0]
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
