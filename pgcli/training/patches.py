"""What lies under the middle of each patch of a drawing: the eye's own lesson.

Learning shapes, colours and places straight from the patches takes minutes; learning them through
the words of answers takes hours. The head that reads them is thrown away after training.

B pictures · P patches · D width
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pgcli.training.scenes import BACKGROUNDS, COLOURS, SHAPES, Scene

SIDES = 4
NOTHING_WEIGHT = 0.2


Values = TypeVar("Values")


class Under(NamedTuple, Generic[Values]):
    """Per patch: shape and colour from 1, 0 for none; the background; the thing's sides.

    The sides are distances from the patch's middle, in fractions of the picture: up, left, down
    and right.
    """

    shape_P: Values
    colour_P: Values
    background_P: Values
    side_P4: Values


def under_patches(scene: Scene, across: int) -> Under[numpy.ndarray]:
    """What each of `across` times `across` patches has in its middle, row by row."""
    middle = (numpy.arange(across) + 0.5) / across
    y_P, x_P = numpy.repeat(middle, across), numpy.tile(middle, across)
    shape_P, colour_P = numpy.zeros(across**2, int), numpy.zeros(across**2, int)
    side_P4 = numpy.zeros((across**2, SIDES), numpy.float32)
    for thing, box in zip(scene.things, scene.boxes, strict=True):
        side = numpy.stack([y_P - box.ymin, x_P - box.xmin, box.ymax - y_P, box.xmax - x_P], 1)
        inside_P = (side > 0).all(1)
        shape_P[inside_P] = SHAPES.index(thing.shape) + 1
        colour_P[inside_P] = list(COLOURS).index(thing.colour) + 1
        side_P4[inside_P] = side[inside_P]
    background_P = numpy.full(across**2, list(BACKGROUNDS).index(scene.background))
    return Under(shape_P, colour_P, background_P, side_P4)


def stack(under: Sequence[Under[numpy.ndarray]]) -> Under[Tensor]:
    """Many pictures' patches as tensors (B, P) and (B, P, 4)."""
    return Under(*(torch.from_numpy(numpy.stack(column)) for column in zip(*under, strict=True)))


class PatchHead(nn.Module):
    """Reads shape, colour, background and sides off the projected patches."""

    def __init__(self, width: int):
        super().__init__()
        self.sizes = (len(SHAPES) + 1, len(COLOURS) + 1, len(BACKGROUNDS), SIDES)
        self.read = nn.Linear(width, sum(self.sizes))
        nn.init.zeros_(self.read.weight)  # nothing by chance: a run follows from its seed
        nn.init.zeros_(self.read.bias)

    def loss(self, patch_BPD: Tensor, under: Under[Tensor]) -> tuple[Tensor, Tensor]:
        """How wrong the patches are, and the share of patches whose shape and colour are right."""
        shape, colour, background, side = self.read(patch_BPD).float().split(self.sizes, dim=-1)
        on_thing_BP = under.shape_P > 0
        wrong = (
            _class_loss(shape, under.shape_P)
            + _class_loss(colour, under.colour_P)
            + 0.2 * F.cross_entropy(background.flatten(0, 1), under.background_P.flatten())
            + 8 * F.l1_loss(side[on_thing_BP], under.side_P4[on_thing_BP])
        )
        right_BP = (shape.argmax(-1) == under.shape_P) & (colour.argmax(-1) == under.colour_P)
        return wrong, right_BP.float().mean()


def _class_loss(logits_BPx: Tensor, class_BP: Tensor) -> Tensor:
    """Cross-entropy in which the many patches of class 0, nothing, do not drown the others."""
    weight = torch.ones(logits_BPx.shape[-1], device=logits_BPx.device)
    weight[0] = NOTHING_WEIGHT
    return F.cross_entropy(logits_BPx.flatten(0, 1), class_BP.flatten(), weight=weight)
