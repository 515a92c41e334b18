"""Drawings -> batches to learn from: every picture once, with several of its lessons.

B rows (a picture and one lesson) · I pictures · R resolution · T text tokens
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

import numpy
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from pgcli.engine.tokens import Vocabulary
from pgcli.training.drawing import render, smaller
from pgcli.training.lessons import Lesson, lessons
from pgcli.training.scenes import Scene

IGNORED = -100  # a target that no loss looks at, as torch's cross_entropy has it
LONGER_SIDE = (150, 260)  # pixels of a training drawing; natural ones are larger and cost more
ANSWER_WEIGHT = 4.0  # a question's one-word answer against a word of a caption


@dataclass(frozen=True, slots=True)
class Batch:
    """Pictures, and rows of text about them: `[bos prompt newline answer eos]`, padded at the end.

    `picture_B` is each row's picture; `target_BT` the next token where it belongs to an answer,
    elsewhere IGNORED; `weight_BT` how much that token counts.
    """

    pixels_IRRC: Tensor
    picture_B: Tensor
    token_BT: Tensor
    is_real_BT: Tensor
    is_prefix_BT: Tensor
    target_BT: Tensor
    weight_BT: Tensor
    kinds: tuple[str, ...]

    def to(self, device: torch.device) -> Batch:
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> Batch:
        """The same in page-locked memory, from which a GPU copies while it works."""
        return self._each(Tensor.pin_memory)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        tensors = {name: getattr(self, name) for name in self.__slots__ if name != "kinds"}
        return Batch(**{name: change(x) for name, x in tensors.items()}, kinds=self.kinds)


@dataclass(frozen=True)
class Drawings(Dataset[Batch]):
    """Batch number n is always the same: drawings of consecutive seeds, lessons drawn by seed."""

    vocabulary: Vocabulary
    eos: int
    seeds: range
    resolution: int
    pictures: int
    lessons_each: int
    text_slots: int

    def __len__(self) -> int:
        return len(self.seeds) // self.pictures

    def __getitem__(self, number: int) -> Batch:
        first = number * self.pictures
        pixels, rows, lesson_rows = [], [], []
        for place, seed in enumerate(self.seeds[first : first + self.pictures]):
            rng = Random(f"lessons {seed}")
            scene = Scene.from_seed(seed)
            picture = render(scene, *smaller(scene, rng.randint(*LONGER_SIDE)))
            pixels.append(self._square(picture))
            for lesson in self._some(lessons(scene, rng), rng):
                rows.append(place)
                lesson_rows.append(lesson)
        return self._batch(torch.stack(pixels), rows, lesson_rows)

    def _square(self, picture: Image.Image) -> Tensor:
        square = picture.resize((self.resolution, self.resolution), Image.Resampling.BICUBIC)
        return torch.from_numpy(numpy.array(square))

    def _some(self, drawn: list[Lesson], rng: Random) -> list[Lesson]:
        """The caption, one detection at least, and others: the same number for every drawing."""
        caption, *others = drawn
        rng.shuffle(others)
        detection = next(place for place, lesson in enumerate(others) if lesson.kind == "detect")
        others.insert(0, others.pop(detection))
        chosen = [caption, *others]
        while len(chosen) < self.lessons_each:
            chosen += others
        return chosen[: self.lessons_each]

    def _batch(self, pixels: Tensor, rows: list[int], drawn: list[Lesson]) -> Batch:
        shape = (len(rows), self.text_slots)
        token = torch.zeros(shape, dtype=torch.long)
        target = torch.full(shape, IGNORED, dtype=torch.long)
        weight = torch.zeros(shape)
        is_real, is_prefix = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape).bool()
        for row, lesson in enumerate(drawn):
            prefix = self.vocabulary.prompt(lesson.prefix)
            answer = [*self.vocabulary.answer(lesson.suffix), self.eos]
            ids = [*prefix, *answer]
            start, end = len(prefix) - 1, len(ids) - 1
            token[row, : len(ids) - 1] = torch.tensor(ids[:-1])
            target[row, start:end] = torch.tensor(answer)
            weight[row, start:end] = 1.0
            if lesson.kind not in ("caption", "detect"):
                weight[row, start] = ANSWER_WEIGHT
            is_real[row, :end] = True
            is_prefix[row, : len(prefix)] = True
        kinds = tuple(lesson.kind for lesson in drawn)
        return Batch(pixels, torch.tensor(rows), token, is_real, is_prefix, target, weight, kinds)


def batches(drawings: Drawings, *, first: int, end: int, workers: int) -> Iterator[Batch]:
    """Batches number `first` up to `end`, drawn ahead by worker processes."""
    loader = DataLoader(
        drawings,
        batch_size=None,
        sampler=range(first, end),
        num_workers=workers,
        prefetch_factor=4 if workers else None,
        pin_memory=torch.cuda.is_available(),
    )
    yield from loader
