"""Per-patch targets that train the vision tower directly, and the head that predicts them.

The tower learns shapes, colours and positions from patches in minutes, and from answers in hours.
The head is discarded after training.

B images · P patches · D width · X columns of targets
"""

from __future__ import annotations

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
#: The columns of targets: shape and colour from 1, 0 for none; the background; the object's sides,
#: distances from the patch's centre in fractions of the image: up, left, down and right; the
#: letters, from 1, in the middle of each third of the patch; their places in the word, from 1.
COLUMNS = [1, 1, 1, SIDES, THIRDS, THIRDS]


def patch_targets(scene: Scene, patches_per_side: int) -> Tensor:
    """The targets (P, X) at the centre of each patch of a square grid, row by row."""
    centre = (numpy.arange(patches_per_side) + 0.5) / patches_per_side
    y_P, x_P = numpy.repeat(centre, patches_per_side), numpy.tile(centre, patches_per_side)
    target_PX = numpy.zeros((patches_per_side**2, sum(COLUMNS)), numpy.float32)
    target_PX[:, 2] = list(BACKGROUNDS).index(scene.background)
    for drawn, box in zip(scene.objects, scene.boxes, strict=True):
        side_P4 = numpy.stack([y_P - box.ymin, x_P - box.xmin, box.ymax - y_P, box.xmax - x_P], 1)
        inside = (side_P4 > 0).all(1)
        target_PX[inside, 0] = SHAPES.index(drawn.shape) + 1
        target_PX[inside, 1] = list(COLOURS).index(drawn.colour) + 1
        target_PX[inside, 3 : 3 + SIDES] = side_P4[inside]
    cells = numpy.zeros((2, patches_per_side, patches_per_side * THIRDS))
    centre_x = (numpy.arange(patches_per_side * THIRDS) + 0.5) / (patches_per_side * THIRDS)
    for word in scene.words:  # in the rows of patches that have its middle or lie within it
        top, bottom = word.top / scene.height, word.y / scene.height
        is_word = (centre > top) & (centre < bottom)
        is_word[int((top + bottom) / 2 * patches_per_side)] = True
        index = numpy.searchsorted(numpy.array(word.edges) / scene.width, centre_x) - 1
        is_letter = (index >= 0) & (index < len(word.text))
        classes = numpy.array([LETTERS.index(letter) + 1 for letter in word.text])
        cells[0][numpy.ix_(is_word, is_letter)] = classes[index[is_letter]]
        cells[1][numpy.ix_(is_word, is_letter)] = index[is_letter] + 1
    target_PX[:, -2 * THIRDS :] = numpy.concatenate(cells.reshape(2, -1, THIRDS), axis=1)
    return torch.from_numpy(target_PX)


class PatchHead(nn.Module):
    """Predicts shape, colour, background, sides, letters and indices from the projected patches."""

    def __init__(self, width: int):
        super().__init__()
        self.sizes = [
            len(SHAPES) + 1,
            len(COLOURS) + 1,
            len(BACKGROUNDS),
            SIDES,
            THIRDS * LETTER_CLASSES,
            THIRDS * INDEX_CLASSES,
        ]
        self.read = nn.Linear(width, sum(self.sizes))
        nn.init.zeros_(self.read.weight)  # not random, so that a run follows from its seed
        nn.init.zeros_(self.read.bias)

    def loss(self, patch_BPD: Tensor, target_BPX: Tensor) -> tuple[Tensor, dict[str, float]]:
        """The loss, and the shares of patches with an object, of letters and of indices right."""
        read = torch.split(self.read(patch_BPD).float(), self.sizes, dim=-1)
        true = torch.split(target_BPX, COLUMNS, dim=-1)
        shape, colour, background = (
            (logits, classes[..., 0].long())
            for logits, classes in zip(read[:3], true[:3], strict=True)
        )
        letter, index = (
            (logits.reshape(*logits.shape[:2], THIRDS, -1), classes.long())
            for logits, classes in zip(read[4:], true[4:], strict=True)
        )
        has_object_BP = shape[1] > 0
        loss = (
            _class_loss(*shape)
            + _class_loss(*colour)
            + 0.2 * F.cross_entropy(background[0].flatten(0, 1), background[1].flatten())
            + _class_loss(*letter)
            + 0.3 * _class_loss(*index)
        )
        if bool(has_object_BP.any()):  # the mean of nothing is not a number
            loss = loss + 8 * F.l1_loss(read[3][has_object_BP], true[3][has_object_BP])
        is_right_BP = _is_right(*shape) & _is_right(*colour)
        return loss, {
            "patches": _share(is_right_BP[has_object_BP]),
            "letters": _share(_is_right(*letter)[letter[1] > 0]),
            "indices": _share(_is_right(*index)[letter[1] > 0]),
        }


def _is_right(logits: Tensor, classes: Tensor) -> Tensor:
    return logits.argmax(-1) == classes


def _share(is_right: Tensor) -> float:
    """The share of what is right; 1 of nothing."""
    return is_right.float().mean().item() if len(is_right) else 1.0


def _class_loss(logits: Tensor, classes: Tensor) -> Tensor:
    """Cross-entropy with a lower weight for class 0, patches without an object."""
    weight = torch.ones(logits.shape[-1], device=logits.device)
    weight[0] = EMPTY_WEIGHT
    return F.cross_entropy(logits.flatten(0, -2), classes.flatten(), weight=weight)
