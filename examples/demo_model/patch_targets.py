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

SIDES = 4
EMPTY_WEIGHT = 0.2  # of patches without an object, which are the majority


Values = TypeVar("Values")


class PatchTargets(NamedTuple, Generic[Values]):
    """Per patch: shape and colour from 1, 0 for none; the background; the object's sides.

    The sides are distances from the patch's centre in fractions of the image: up, left, down and
    right.
    """

    shape_P: Values
    colour_P: Values
    background_P: Values
    side_P4: Values


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
    return PatchTargets(shape_P, colour_P, background_P, side_P4)


def collate(targets: Sequence[PatchTargets[numpy.ndarray]]) -> PatchTargets[Tensor]:
    """The targets of many images as tensors (B, P) and (B, P, 4)."""
    columns = zip(*targets, strict=True)
    return PatchTargets(*(torch.from_numpy(numpy.stack(column)) for column in columns))


class PatchHead(nn.Module):
    """Predicts shape, colour, background and sides from the projected patches."""

    def __init__(self, width: int):
        super().__init__()
        self.sizes = (len(SHAPES) + 1, len(COLOURS) + 1, len(BACKGROUNDS), SIDES)
        self.read = nn.Linear(width, sum(self.sizes))
        nn.init.zeros_(self.read.weight)  # not random, so that a run follows from its seed
        nn.init.zeros_(self.read.bias)

    def loss(self, patch_BPD: Tensor, targets: PatchTargets[Tensor]) -> tuple[Tensor, Tensor]:
        """The loss, and the share of patches with the right shape and colour."""
        shape, colour, background, side = self.read(patch_BPD).float().split(self.sizes, dim=-1)
        has_object_BP = targets.shape_P > 0
        loss = (
            _class_loss(shape, targets.shape_P)
            + _class_loss(colour, targets.colour_P)
            + 0.2 * F.cross_entropy(background.flatten(0, 1), targets.background_P.flatten())
            + 8 * F.l1_loss(side[has_object_BP], targets.side_P4[has_object_BP])
        )
        is_right_BP = shape.argmax(-1) == targets.shape_P
        is_right_BP &= colour.argmax(-1) == targets.colour_P
        return loss, is_right_BP.float().mean()


def _class_loss(logits_BPx: Tensor, class_BP: Tensor) -> Tensor:
    """Cross-entropy with a lower weight for class 0, patches without an object."""
    weight = torch.ones(logits_BPx.shape[-1], device=logits_BPx.device)
    weight[0] = EMPTY_WEIGHT
    return F.cross_entropy(logits_BPx.flatten(0, 1), class_BP.flatten(), weight=weight)
