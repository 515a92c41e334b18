"""What lies under the middle of each patch of a drawing: the eye's own lesson.

Learning shapes, colours and places straight from the patches takes minutes; learning them through
the words of answers takes hours. The head that reads them is thrown away after training.

B pictures · P patches · D width
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pgcli.training.scenes import BACKGROUNDS, COLOURS, SHAPES, Scene

SIDES = 4


class Under(NamedTuple):
    """Per patch: shape and colour from 1, 0 for none; the background; the thing's sides.

    The sides are distances from the patch's middle, in fractions of the picture: up, left, down
    and right.
    """

    shape_P: Tensor
    colour_P: Tensor
    background_P: Tensor
    side_P4: Tensor


def under_patches(scene: Scene, across: int) -> Under:
    """What each of `across` times `across` patches has in its middle, row by row."""
    middle = (torch.arange(across) + 0.5) / across
    y_P, x_P = (grid.flatten() for grid in torch.meshgrid(middle, middle, indexing="ij"))
    shape_P, colour_P = torch.zeros(across**2).long(), torch.zeros(across**2).long()
    side_P4 = torch.zeros(across**2, SIDES)
    for thing, box in zip(scene.things, scene.boxes, strict=True):
        inside_P = (box.xmin < x_P) & (x_P < box.xmax) & (box.ymin < y_P) & (y_P < box.ymax)
        shape_P[inside_P] = SHAPES.index(thing.shape) + 1
        colour_P[inside_P] = list(COLOURS).index(thing.colour) + 1
        sides = torch.stack([y_P - box.ymin, x_P - box.xmin, box.ymax - y_P, box.xmax - x_P], 1)
        side_P4[inside_P] = sides[inside_P]
    background_P = torch.full((across**2,), list(BACKGROUNDS).index(scene.background))
    return Under(shape_P, colour_P, background_P, side_P4)


class PatchHead(nn.Module):
    """Reads shape, colour, background and sides off the projected patches."""

    def __init__(self, width: int):
        super().__init__()
        self.sizes = (len(SHAPES) + 1, len(COLOURS) + 1, len(BACKGROUNDS), SIDES)
        self.read = nn.Linear(width, sum(self.sizes))

    def loss(self, patch_BPD: Tensor, under: Under) -> tuple[Tensor, Tensor]:
        """How wrong the patches are, and the share of patches whose shape and colour are right."""
        shape, colour, background, side = self.read(patch_BPD).float().split(self.sizes, dim=-1)
        on_thing_BP = under.shape_P > 0
        wrong = (
            F.cross_entropy(shape.flatten(0, 1), under.shape_P.flatten())
            + F.cross_entropy(colour.flatten(0, 1), under.colour_P.flatten())
            + 0.2 * F.cross_entropy(background.flatten(0, 1), under.background_P.flatten())
            + 8 * F.l1_loss(side[on_thing_BP], under.side_P4[on_thing_BP])
        )
        right_BP = (shape.argmax(-1) == under.shape_P) & (colour.argmax(-1) == under.colour_P)
        return wrong, right_BP.float().mean()
