"""Trains a Vision Transformer from scratch, with and without positions and class token.

    python -m examples.vit_from_scratch

It answers one question about drawings: what colour has the leftmost shape? A patch has the colour
but not the place, so a model without position embeddings sees a bag of patches and can only guess
among the colours. The answer is read from a class token, or from the mean of all patches.

B images · C channels · R resolution · P patches (and the class token) · D width · N heads
"""

from __future__ import annotations

import sys
from time import perf_counter

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from examples.demo_model.render import render
from examples.demo_model.scenes import COLOURS, EVAL_SEEDS, TRAINING_SEEDS, Scene

RESOLUTION, PATCH, WIDTH, DEPTH, HEADS = 48, 8, 64, 2, 4
STEPS, BATCH, LEARNING_RATE = 400, 64, 2e-3
#: Name of a variant: whether it has a class token, and whether it has position embeddings.
VARIANTS = {
    "class token, positions": (True, True),
    "mean, positions": (False, True),
    "class token, no positions": (True, False),
    "mean, no positions": (False, False),
}


class Block(nn.Module):
    """Attention, in which patches exchange what they know, then an MLP for each patch alone.

    Norms come first (pre-norm) and both parts add to their input, so that gradients reach the
    embeddings undiminished.
    """

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width, 1e-6), nn.LayerNorm(width, 1e-6)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x_BPD: Tensor) -> Tensor:
        qkv = self.qkv(self.norm1(x_BPD)).unflatten(-1, (3, self.heads, -1))  # (B, P, 3, N, H)
        heads_BNPH = F.scaled_dot_product_attention(*qkv.permute(2, 0, 3, 1, 4))
        x_BPD = x_BPD + self.out(heads_BNPH.transpose(1, 2).flatten(2))
        return x_BPD + self.down(F.gelu(self.up(self.norm2(x_BPD))))


class VisionTransformer(nn.Module):
    """An image classifier: logits of `classes` from normalized images."""

    def __init__(self, classes: int, *, class_token: bool = True, positions: bool = True):
        super().__init__()
        # a convolution whose stride is its size: one matrix product for each patch, no overlap
        self.patches = nn.Conv2d(3, WIDTH, kernel_size=PATCH, stride=PATCH)
        # a learned vector, put before the patches, that collects what the classifier reads
        self.class_token = nn.Parameter(torch.zeros(WIDTH)) if class_token else None
        length = (RESOLUTION // PATCH) ** 2 + class_token
        # learned, and added: nothing else tells attention where a patch is
        self.positions = nn.Parameter(0.02 * torch.randn(length, WIDTH)) if positions else None
        self.blocks = nn.Sequential(*(Block(WIDTH, HEADS) for _ in range(DEPTH)))
        self.norm, self.head = nn.LayerNorm(WIDTH, 1e-6), nn.Linear(WIDTH, classes)

    def forward(self, pixels_BCRR: Tensor) -> Tensor:
        x_BPD = self.patches(pixels_BCRR).flatten(2).transpose(1, 2)
        if self.class_token is not None:
            x_BPD = torch.cat([self.class_token.expand(len(x_BPD), 1, -1), x_BPD], dim=1)
        if self.positions is not None:
            x_BPD = x_BPD + self.positions
        x_BPD = self.norm(self.blocks(x_BPD))
        return self.head(x_BPD.mean(1) if self.class_token is None else x_BPD[:, 0])


def drawings(seeds: range) -> tuple[Tensor, Tensor]:
    """Images of the seeds in -1 ... 1, and the colour of the leftmost shape of each."""
    scenes = [Scene.from_seed(seed) for seed in seeds]
    images = np.stack([np.asarray(render(scene, RESOLUTION, RESOLUTION)) for scene in scenes])
    leftmost = [min(scene.objects, key=lambda shape: shape.x).colour for scene in scenes]
    pixels_BCRR = torch.from_numpy(images).permute(0, 3, 1, 2) / 127.5 - 1
    return pixels_BCRR, torch.tensor([list(COLOURS).index(colour) for colour in leftmost])


def train(model: nn.Module, images: Tensor, labels: Tensor, steps: int) -> float:
    """Train with AdamW and a learning rate that rises, then falls; return the last loss."""
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps)
    for _ in range(steps):
        batch = torch.randint(len(images), (BATCH,))
        loss = F.cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return loss.item()


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """The share of images whose highest logit is that of their label."""
    return (model(images).argmax(-1) == labels).float().mean().item()


def main(steps: int = STEPS) -> dict[str, float]:
    """Train every variant on the same drawings; return the accuracies on unseen ones."""
    started, accuracies = perf_counter(), {}
    training = drawings(TRAINING_SEEDS[: min(8 * steps, 8_000)])
    unseen = drawings(EVAL_SEEDS[: min(2 * steps, 1_000)])
    for name, (class_token, positions) in VARIANTS.items():
        torch.manual_seed(0)
        model = VisionTransformer(len(COLOURS), class_token=class_token, positions=positions)
        loss = train(model, *training, steps)
        accuracies[name] = accuracy(model, *unseen)
        seconds = perf_counter() - started
        print(f"{name:<28} loss {loss:.3f}  accuracy {accuracies[name]:.1%}  {seconds:.0f} s")
    return accuracies


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
