"""Per-patch targets that train the vision tower directly, and the head that predicts them.

The tower learns shapes, colours and positions from patches in minutes, and from answers in hours.
The head is discarded after training.

B images · P patches · D width
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from examples.demo_model.scenes import BACKGROUNDS, COLOURS, SHAPES, Scene
from examples.demo_model.words import LETTERS, MAX_LETTERS

SIDES = 4
LETTER_CLASSES = len(LETTERS) + 1
INDEX_CLASSES = MAX_LETTERS + 1
THIRDS = 3  # of a patch's width, each with a letter
EMPTY_WEIGHT = 0.2  # of patches without an object, which are the majority


Values = TypeVar("Values")


class PatchTargets(NamedTuple, Generic[Values]):
    """Per patch: shape and colour from 1, 0 for none; the background; the object's sides; letters.

    The sides are distances from the patch's centre in fractions of the image: up, left, down and
    right. The letters, from 1, are those in the middle of each third of the patch, and the indices,
    from 1, their places in the word.
    """

    shape_P: Values
    colour_P: Values
    background_P: Values
    side_P4: Values
    letter_P3: Values
    index_P3: Values


def patch_targets(scene: Scene, patches_per_side: int) -> PatchTargets[numpy.ndarray]:
    """The targets at the centre of each patch of a square grid, row by row."""
    centre = (numpy.arange(patches_per_side) + 0.5) / patches_per_side
    patches = patches_per_side**2
    y_P, x_P = numpy.repeat(centre, patches_per_side), numpy.tile(centre, patches_per_side)
    shape_P, colour_P = numpy.zeros(patches, int), numpy.zeros(patches, int)
    side_P4 = numpy.zeros((patches, SIDES), numpy.float32)
    for drawn, box in zip(scene.objects, scene.boxes, strict=True):
        side = numpy.stack([y_P - box.ymin, x_P - box.xmin, box.ymax - y_P, box.xmax - x_P], 1)
        is_inside_P = (side > 0).all(1)
        shape_P[is_inside_P] = SHAPES.index(drawn.shape) + 1
        colour_P[is_inside_P] = list(COLOURS).index(drawn.colour) + 1
        side_P4[is_inside_P] = side[is_inside_P]
    background_P = numpy.full(patches, list(BACKGROUNDS).index(scene.background))
    letters = _letters(scene, patches_per_side)
    return PatchTargets(shape_P, colour_P, background_P, side_P4, *letters)


def _letters(scene: Scene, patches_per_side: int) -> tuple[numpy.ndarray, numpy.ndarray]:
    """The letters (P, 3) of words and their indices (P, 3).

    They are in the rows of patches that have the middle of a word or lie within it.
    """
    cells = numpy.zeros((patches_per_side, patches_per_side * THIRDS), int)
    indices = cells.copy()
    row_centre = (numpy.arange(patches_per_side) + 0.5) / patches_per_side
    centre = (numpy.arange(cells.shape[1]) + 0.5) / cells.shape[1]
    for word in scene.words:
        top, bottom = word.top / scene.height, word.y / scene.height
        is_word = (row_centre > top) & (row_centre < bottom)
        is_word[int((top + bottom) / 2 * patches_per_side)] = True
        index = numpy.searchsorted(numpy.array(word.edges) / scene.width, centre) - 1
        is_letter = (index >= 0) & (index < len(word.text))
        classes = numpy.array([LETTERS.index(letter) + 1 for letter in word.text])
        cells[numpy.ix_(is_word, is_letter)] = classes[index[is_letter]]
        indices[numpy.ix_(is_word, is_letter)] = index[is_letter] + 1
    return cells.reshape(-1, THIRDS), indices.reshape(-1, THIRDS)


def collate(targets: Sequence[PatchTargets[numpy.ndarray]]) -> PatchTargets[Tensor]:
    """The targets of many images as tensors (B, P), (B, P, 4) and (B, P, 3)."""
    columns = zip(*targets, strict=True)
    return PatchTargets(*(torch.from_numpy(numpy.stack(column)) for column in columns))


class PatchHead(nn.Module):
    """Predicts shape, colour, background, sides, letters and indices from the projected patches."""

    def __init__(self, width: int):
        super().__init__()
        self.sizes = (
            len(SHAPES) + 1,
            len(COLOURS) + 1,
            len(BACKGROUNDS),
            SIDES,
            THIRDS * LETTER_CLASSES,
            THIRDS * INDEX_CLASSES,
        )
        self.read = nn.Linear(width, sum(self.sizes))
        nn.init.zeros_(self.read.weight)  # not random, so that a run follows from its seed
        nn.init.zeros_(self.read.bias)

    def loss(
        self, patch_BPD: Tensor, targets: PatchTargets[Tensor]
    ) -> tuple[Tensor, dict[str, float]]:
        """The loss, and the shares of patches with an object, of letters and of indices right."""
        read_BPx = self.read(patch_BPD).float()
        shape, colour, background, side, letter, index = read_BPx.split(self.sizes, dim=-1)
        letter = letter.unflatten(-1, (THIRDS, LETTER_CLASSES))
        index = index.unflatten(-1, (THIRDS, INDEX_CLASSES))
        has_object_BP = targets.shape_P > 0
        loss = (
            _class_loss(shape, targets.shape_P)
            + _class_loss(colour, targets.colour_P)
            + 0.2 * F.cross_entropy(background.flatten(0, 1), targets.background_P.flatten())
            + _class_loss(letter.flatten(1, 2), targets.letter_P3.flatten(1))
            + 0.3 * _class_loss(index.flatten(1, 2), targets.index_P3.flatten(1))
        )
        if bool(has_object_BP.any()):  # the mean of nothing is not a number
            loss = loss + 8 * F.l1_loss(side[has_object_BP], targets.side_P4[has_object_BP])
        is_right_BP = (shape.argmax(-1) == targets.shape_P) & (
            colour.argmax(-1) == targets.colour_P
        )
        is_letter_BP3 = targets.letter_P3 > 0
        return loss, {
            "patches": _share(is_right_BP[has_object_BP]),
            "letters": _share((letter.argmax(-1) == targets.letter_P3)[is_letter_BP3]),
            "indices": _share((index.argmax(-1) == targets.index_P3)[is_letter_BP3]),
        }


def _share(is_right: Tensor) -> float:
    """The share of what is right; 1 of nothing."""
    return is_right.float().mean().item() if len(is_right) else 1.0


def _class_loss(logits_BPx: Tensor, class_BP: Tensor) -> Tensor:
    """Cross-entropy with a lower weight for class 0, patches without an object."""
    weight = torch.ones(logits_BPx.shape[-1], device=logits_BPx.device)
    weight[0] = EMPTY_WEIGHT
    return F.cross_entropy(logits_BPx.flatten(0, 1), class_BP.flatten(), weight=weight)
