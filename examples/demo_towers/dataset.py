"""Batches of drawings with several captions each; a batch follows from its step.

B drawings · V drawings that are there twice · R resolution · C channels · N texts · T tokens ·
S meanings of a drawing
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from examples.demo_model.render import render, scaled_size
from examples.demo_model.scenes import Scene
from examples.demo_towers.augment import augment
from examples.demo_towers.captions import Caption, Meaning, draw_captions, true_meanings
from pgcli.embedding.texts import TextProcessor
from pgcli.training.contrastive import Meanings

LONGER_SIDE = (120, 240)  # pixels; the scenes' own sizes are larger and take longer to draw
NO_MEANING = -1


@dataclass(frozen=True)
class PairBatch:
    """Drawings, their texts, and which drawing each text is about.

    The first V drawings are there again as `copy_VRRC`, changed by `augment`, and as
    `rearranged_VRRC`, with the same objects in other places: the captions are true of both.
    """

    pixels_BRRC: Tensor
    copy_VRRC: Tensor
    rearranged_VRRC: Tensor
    token_NT: Tensor
    image_N: Tensor
    meanings: Meanings


@dataclass(frozen=True)
class CaptionedScenes(Dataset[PairBatch]):
    """Scenes with consecutive seeds, `batch_size` in a batch, with `captions` texts each."""

    processor: TextProcessor
    seeds: range
    resolution: int
    batch_size: int
    captions: int = 3
    copies: int = 0
    is_augmented: bool = True

    def __len__(self) -> int:
        return len(self.seeds) // self.batch_size

    def __getitem__(self, index: int) -> PairBatch:
        first = index * self.batch_size
        seeds = self.seeds[first : first + self.batch_size]
        scenes = [Scene.from_seed(seed) for seed in seeds]
        rngs = [Random(f"captions {seed}") for seed in seeds]
        pixels = [self._pixels(one, rng) for one, rng in zip(scenes, rngs, strict=True)]
        twice = list(zip(scenes, rngs, strict=True))[: self.copies]
        copies = [self._pixels(one, rng) for one, rng in twice]
        rearranged = [self._pixels(one.rearranged(rng), rng) for one, rng in twice]
        drawn = [draw_captions(s, r, self.captions) for s, r in zip(scenes, rngs, strict=True)]
        texts = [caption for captions in drawn for caption in captions]
        image_N = torch.arange(len(scenes)).repeat_interleave(self.captions)
        return PairBatch(
            *map(self._stack, (pixels, copies, rearranged)),
            self.processor([one.text for one in texts], raw=True),
            image_N,
            number_meanings(texts, scenes, image_N),
        )

    def _stack(self, pixels: Sequence[Any]) -> Tensor:
        shape = len(pixels), self.resolution, self.resolution, 3
        return torch.from_numpy(numpy.array(pixels, dtype=numpy.uint8).reshape(shape))

    def _pixels(self, scene: Scene, rng: Random) -> Any:
        image = render(scene, *scaled_size(scene, rng.randint(*LONGER_SIDE)))
        if self.is_augmented:
            image = augment(image, scene.background_rgb, rng)
        side = (self.resolution, self.resolution)
        return numpy.asarray(image.resize(side, Image.Resampling.BICUBIC))


def number_meanings(texts: Sequence[Caption], scenes: Sequence[Scene], image_N: Tensor) -> Meanings:
    """The meanings of the texts, and for each text those that are true of its drawing."""
    number: dict[Meaning, int] = {}
    for text in texts:
        number.setdefault(text.meaning, len(number))
    known = [
        [number[meaning] for meaning in true_meanings(scene) if meaning in number]
        for scene in scenes
    ]
    longest = max(map(len, known))
    padded = [numbers + [NO_MEANING] * (longest - len(numbers)) for numbers in known]
    text_N = torch.tensor([number[text.meaning] for text in texts])
    return Meanings(text_N, torch.tensor(padded)[image_N])


def load_batches(dataset: Any, steps: range, *, workers: int) -> Iterator[PairBatch]:
    """The batches of the steps, prefetched by worker processes."""
    loader: DataLoader[Any] = DataLoader(
        dataset,
        batch_size=None,
        sampler=steps,
        num_workers=workers,
        prefetch_factor=4 if workers else None,
    )
    yield from loader
