"""Drawings -> batches to learn from, drawn ahead by worker processes.

B rows, each one picture · C channels · R resolution
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from pgcli.engine.tokens import Vocabulary
from pgcli.training import patches, rows
from pgcli.training.drawing import render, smaller
from pgcli.training.lessons import Lesson, lessons
from pgcli.training.patches import Under, under_patches
from pgcli.training.rows import Row, pack
from pgcli.training.scenes import Scene

Drawn = tuple[numpy.ndarray, Row[list[float]], Under[numpy.ndarray], tuple[str, ...]]
LONGER_SIDE = (120, 200)  # pixels of a training drawing; natural ones are larger and cost more


@dataclass(frozen=True)
class Batch:
    """Pictures, the text about each in one row, what lies under their patches; stacked by row."""

    pixels_BRRC: Tensor
    row: Row[Tensor]
    under: Under[Tensor]
    kinds: tuple[tuple[str, ...], ...]

    def to(self, device: torch.device) -> Batch:
        return replace(
            self,
            pixels_BRRC=self.pixels_BRRC.to(device, non_blocking=True),
            row=Row(*(tensor.to(device, non_blocking=True) for tensor in self.row)),
            under=Under(*(tensor.to(device, non_blocking=True) for tensor in self.under)),
        )


@dataclass(frozen=True)
class Drawings(Dataset[Batch]):
    """Batch number n is always the same: drawings of consecutive seeds, lessons drawn by seed.

    Up to `lessons_each` lessons go into a row of `text_slots` tokens, as many as fit; with none
    there are only pictures and what lies under their patches.
    """

    vocabulary: Vocabulary
    eos: int
    seeds: range
    resolution: int
    patches_across: int
    pictures: int
    lessons_each: int
    text_slots: int

    def __len__(self) -> int:
        return len(self.seeds) // self.pictures

    def __getitem__(self, number: int) -> Batch:
        first = number * self.pictures
        drawn = [self._drawing(seed) for seed in self.seeds[first : first + self.pictures]]
        pixels, texts, under, kinds = zip(*drawn, strict=True)
        return Batch(
            torch.from_numpy(numpy.stack(pixels)),
            rows.stack(texts, self.text_slots),
            patches.stack(under),
            kinds,
        )

    def _drawing(self, seed: int) -> Drawn:
        rng = Random(f"lessons {seed}")
        scene = Scene.from_seed(seed)
        picture = render(scene, *smaller(scene, rng.randint(*LONGER_SIDE)))
        square = picture.resize((self.resolution, self.resolution), Image.Resampling.BICUBIC)
        chosen = self._order(lessons(scene, rng), rng) if self.lessons_each else []
        sizes = {"slots": self.text_slots, "most": self.lessons_each}
        row, kinds = pack(chosen, self.vocabulary, eos=self.eos, **sizes)
        under = under_patches(scene, self.patches_across)
        return numpy.asarray(square), row, under, kinds

    def _order(self, drawn: list[Lesson], rng: Random) -> list[Lesson]:
        """By chance, but where several lessons share a row, a caption and a detection first."""
        rng.shuffle(drawn)
        if self.lessons_each > 1:
            firsts = [next(x for x in drawn if x.kind == kind) for kind in ("caption", "detect")]
            return firsts + [lesson for lesson in drawn if lesson not in firsts]
        return drawn


def batches(
    drawings: Drawings, *, first: int, end: int, workers: int, pinned: bool
) -> Iterator[Batch]:
    """Batches number `first` up to `end`, drawn ahead by worker processes."""
    loader: DataLoader[Any] = DataLoader(
        drawings,
        batch_size=None,
        sampler=range(first, end),
        num_workers=workers,
        prefetch_factor=4 if workers else None,
        pin_memory=pinned,
    )
    yield from loader
