"""The built-in model at the start of training, and a head that trains its vision tower directly.

The tower learns shapes, colours and positions from patches in minutes, from answers in hours. The
head is discarded after training.

B images · P patches of an image · N patches of all · D width · X values or targets of a patch
"""

from __future__ import annotations

import math
from pathlib import Path
from string import ascii_uppercase as LETTERS

import numpy
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from examples.demo_model.scenes import BACKGROUNDS, COLOURS, MAX_LETTERS, SHAPES, Scene
from pgcli.checkpoints import weights
from pgcli.checkpoints.config import read_config
from pgcli.checkpoints.find import BUILTIN
from pgcli.checkpoints.save import save_checkpoint
from pgcli.model.config import PaliGemmaConfig
from pgcli.model.paligemma import PaliGemma

PATCH_HEAD = "patch_head.safetensors"
SIDES = 4
THIRDS = 3  # of a patch's width, one letter each
#: The columns of targets: shape and colour from 1, 0 for none; the background; the object's sides,
#: distances from the patch's centre in fractions of the image: up, left, down and right; the
#: letters, from 1, in the middle of each third of the patch; their places in the word, from 1.
COLUMNS = [1, 1, 1, SIDES, THIRDS, THIRDS]
EMPTY_WEIGHT = 0.2  # for patches without an object, the majority


class DemoLearner(nn.Module):
    """The model, and the head that is trained with it."""

    def __init__(self, paligemma: PaliGemma):
        super().__init__()
        self.paligemma = paligemma
        self.head = PatchHead(paligemma.config.decoder.width)

    @classmethod
    def load(cls, *folders: Path) -> DemoLearner:
        """The model and the head of an earlier run, or the mean of several runs.

        The last updates from a few rows are noise, which averaging reduces; the loss does not rise
        as long as the runs are near each other (Izmailov et al., 2018, arXiv:1803.05407).
        """
        learners = []
        for folder in folders:
            model = weights.load_paligemma(folder, read_config(folder), dtype=torch.float32)
            learner = cls(model.requires_grad_(True))
            learner.head.load_state_dict(load_file(folder / PATCH_HEAD))
            learners.append(learner)
        with torch.no_grad():
            for values in zip(*(learner.parameters() for learner in learners), strict=True):
                values[0].copy_(torch.stack(values).mean(0))
        return learners[0]

    def save(self, folder: Path, dtype: torch.dtype) -> None:
        """Write the model, with the shipped tokenizer, and the head."""
        save_checkpoint(self.paligemma, folder, source=BUILTIN, dtype=dtype)
        save_file(self.head.state_dict(), folder / PATCH_HEAD)


@torch.no_grad()
def new_model(config: PaliGemmaConfig, pixels_BCRR: Tensor, seed: int = 0) -> PaliGemma:
    """A model with random weights that keep the variance of activations.

    The patch embedding whitens the patches of images; the vision tower's query weights are also its
    key weights, so that a patch first attends to similar patches (Trockman and Kolter, "Mimetic
    Initialization of Self-Attention Layers", 2023).
    """
    model, generator = PaliGemma(config), torch.Generator().manual_seed(seed)
    depths = {"vision": config.vision.depth, "decoder": config.decoder.depth}
    for name, module in model.named_modules():
        if name.endswith("position_embedding"):
            module.weight.copy_(sincos_2d(*module.weight.shape))
        elif isinstance(module, nn.Embedding | nn.Linear | nn.Conv2d):
            is_residual = name.endswith(("o_proj", "out_proj", "down_proj", "fc2"))
            branches = 2 * depths.get(name.split(".")[0], 1) if is_residual else 1
            std = (module.weight[0].numel() * branches) ** -0.5
            module.weight.copy_(torch.randn(module.weight.shape, generator=generator) * std)
            if isinstance(bias := getattr(module, "bias", None), Tensor):
                bias.zero_()
        if name.endswith("self_attn") and name.startswith("vision"):
            query, key, _ = module.qkv_proj.weight.chunk(3)
            key.copy_(query)
    whiten_patches(model.vision.embeddings.patch_embedding, pixels_BCRR)
    return model


@torch.no_grad()
def whiten_patches(embedding: nn.Conv2d, pixels_BCRR: Tensor) -> None:
    """Make the embedding the principal components of the images' patches, with equal variances.

    The thin strokes of letters, a small part of the variance, then weigh as much as areas.
    """
    size = embedding.kernel_size[0]
    columns = nn.functional.unfold(pixels_BCRR.double(), size, stride=size)
    patch_NX = columns.movedim(1, 2).flatten(0, 1)
    mean_X = patch_NX.mean(0)
    covariance_XX = (patch_NX - mean_X).T @ (patch_NX - mean_X) / len(patch_NX)
    variance_X, component_XX = torch.linalg.eigh(covariance_XX)  # the largest variance comes last
    variance_D = variance_X[-embedding.out_channels :]
    filter_DX = component_XX.T[-embedding.out_channels :]
    filter_DX = filter_DX / (variance_D + 0.1 * variance_D[0]).sqrt()[:, None]
    embedding.weight.copy_(filter_DX.reshape(embedding.weight.shape))
    assert embedding.bias is not None
    embedding.bias.copy_(-filter_DX @ mean_X)


def sincos_2d(patches: int, width: int) -> Tensor:
    """Sine and cosine position embeddings (P, D) of each patch's row and column.

    A vision tower learns positions from them much faster than from random embeddings.
    """
    patches_per_side = math.isqrt(patches)
    index_P = torch.arange(patches)
    frequency = 1 / patches_per_side ** (torch.arange(width // 4) / (width // 4))
    rows_and_columns = (index_P // patches_per_side, index_P % patches_per_side)
    angles = [axis[:, None] * frequency for axis in rows_and_columns]
    return torch.cat([wave for angle in angles for wave in (angle.sin(), angle.cos())], dim=1)


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
    for word in scene.words:  # in rows of patches that contain its middle or lie within it
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
    """Predicts shape, colour, background, sides, letters and their places from the patches."""

    def __init__(self, width: int):
        super().__init__()
        letters, places = THIRDS * (len(LETTERS) + 1), THIRDS * (MAX_LETTERS + 1)
        self.sizes = [len(SHAPES) + 1, len(COLOURS) + 1, len(BACKGROUNDS), SIDES, letters, places]
        self.read = nn.Linear(width, sum(self.sizes))
        nn.init.zeros_(self.read.weight)  # not random, so that the seed determines a run
        nn.init.zeros_(self.read.bias)

    def loss(self, patch_BPD: Tensor, target_BPX: Tensor) -> Tensor:
        """The sum of the losses of all columns."""
        read = torch.split(self.read(patch_BPD).float(), self.sizes, dim=-1)
        true = torch.split(target_BPX, COLUMNS, dim=-1)
        has_object_BP = target_BPX[..., 0] > 0
        distance = (read[3] - true[3]).abs()[has_object_BP].mean() if has_object_BP.any() else 0.0
        return (
            _class_loss(read[0], true[0])
            + _class_loss(read[1], true[1])
            + 0.2 * _class_loss(read[2], true[2], first_weight=1.0)
            + _class_loss(read[4], true[4])
            + 0.3 * _class_loss(read[5], true[5])
            + 8 * distance
        )


def _class_loss(logits: Tensor, true: Tensor, first_weight: float = EMPTY_WEIGHT) -> Tensor:
    """Cross-entropy of all columns of a kind; class 0 has its own weight."""
    classes = logits.shape[-1] // true.shape[-1]
    weight = torch.ones(classes)
    weight[0] = first_weight
    return F.cross_entropy(logits.reshape(-1, classes), true.flatten().long(), weight)
