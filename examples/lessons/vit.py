"""A Vision Transformer, trained with and without positions and a class token.

    python examples/lessons/vit.py [--out DIR]

It answers one question about drawings of two squares: what colour is the left one? A patch shows
the colour but not the place, so without position embeddings the model sees a bag of patches and
guesses.

B images · C channels · R resolution · P patches (and the class token) · D width · N heads
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

RESOLUTION, PATCH, WIDTH, DEPTH, HEADS, COLOURS = 32, 8, 32, 2, 4, 4
STEPS, BATCH = 100, 64
PALETTE = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0]])
#: For each variant: whether it has a class token, and whether it has position embeddings.
VARIANTS = {
    "class token, positions": (True, True),
    "mean, positions": (False, True),
    "class token, no positions": (True, False),
    "mean, no positions": (False, False),
}


# %%
class Block(nn.Module):
    """Attention between patches, then an MLP for each patch.

    Norms come first (pre-norm) and both parts add to their input, so that gradients reach the
    embeddings undiminished.
    """

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH, 1e-6), nn.LayerNorm(WIDTH, 1e-6)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x_BPD: Tensor) -> Tensor:
        qkv = self.qkv(self.norm1(x_BPD)).unflatten(-1, (3, HEADS, -1))  # (B, P, 3, N, H)
        heads_BNPH = F.scaled_dot_product_attention(*qkv.permute(2, 0, 3, 1, 4))
        x_BPD = x_BPD + self.out(heads_BNPH.transpose(1, 2).flatten(2))
        return x_BPD + self.down(F.gelu(self.up(self.norm2(x_BPD))))


class VisionTransformer(nn.Module):
    """An image classifier: logits (B, COLOURS) of pixels (B, C, R, R)."""

    def __init__(self, *, class_token: bool = True, positions: bool = True):
        super().__init__()
        # stride equals kernel size: one matrix product per patch, without overlap
        self.patches = nn.Conv2d(3, WIDTH, kernel_size=PATCH, stride=PATCH)
        # a learned vector before the patches, which the classifier reads
        self.class_token = nn.Parameter(torch.zeros(WIDTH)) if class_token else None
        length = (RESOLUTION // PATCH) ** 2 + class_token
        # learned and added, because attention ignores positions
        self.positions = nn.Parameter(0.02 * torch.randn(length, WIDTH)) if positions else None
        self.blocks = nn.Sequential(*(Block() for _ in range(DEPTH)))
        self.norm, self.head = nn.LayerNorm(WIDTH, 1e-6), nn.Linear(WIDTH, COLOURS)

    def forward(self, pixels_BCRR: Tensor) -> Tensor:
        x_BPD = self.patches(pixels_BCRR).flatten(2).transpose(1, 2)
        if self.class_token is not None:
            x_BPD = torch.cat([self.class_token.expand(len(x_BPD), 1, -1), x_BPD], dim=1)
        if self.positions is not None:
            x_BPD = x_BPD + self.positions
        x_BPD = self.norm(self.blocks(x_BPD))
        return self.head(x_BPD.mean(1) if self.class_token is None else x_BPD[:, 0])


# %%
def drawings(count: int) -> tuple[Tensor, Tensor]:
    """Images in 0 ... 1 of two squares of different colours, and the colour of the left one."""
    pixels_BCRR = torch.rand(count, 3, RESOLUTION, RESOLUTION) * 0.2
    colours = torch.rand(count, COLOURS).argsort(1)[:, :2]
    for square, columns in enumerate((range(8), range(16, 24))):  # left half, right half
        x, y = torch.randint(min(columns), max(columns), (count,)), torch.randint(24, (count,))
        for image in range(count):
            area = pixels_BCRR[image, :, y[image] : y[image] + 8, x[image] : x[image] + 8]
            area[:] = PALETTE[colours[image, square], :, None, None]
    return pixels_BCRR, colours[:, 0]


def train(model: nn.Module, images: Tensor, labels: Tensor) -> list[float]:
    """Train with AdamW and a learning rate that rises, then falls; return the losses."""
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=STEPS)
    losses = []
    for _ in range(STEPS):
        batch = torch.randint(len(images), (BATCH,))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images[batch]), labels[batch])
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


# %%
def main() -> None:
    torch.set_num_threads(1)  # the matrices are small
    torch.manual_seed(0)
    images, labels = drawings(3_000)
    unseen, answers = drawings(1_000)
    print(f"images {list(unseen.shape)}, {(RESOLUTION // PATCH) ** 2} patches each")
    for name, (class_token, positions) in VARIANTS.items():
        torch.manual_seed(0)
        model = VisionTransformer(class_token=class_token, positions=positions)
        train(model, images, labels)
        with torch.no_grad():
            accuracy = (model(unseen).argmax(-1) == answers).float().mean().item()
        print(f"  {name}: {accuracy:.0%} of unseen drawings")
        assert accuracy > 0.9 if positions else accuracy < 0.7
    print("  without positions the two colours are seen, and which is left is a guess")


# %%
def figure():
    """A drawing in patches, and the losses of training with and without positions."""
    from matplotlib import pyplot

    torch.set_num_threads(1)
    torch.manual_seed(0)
    images, labels = drawings(3_000)
    figure, (first, second) = pyplot.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    first.imshow(images[0].permute(1, 2, 0), extent=(0, RESOLUTION, RESOLUTION, 0))
    ticks = range(0, RESOLUTION + 1, PATCH)
    first.set(title="16 patches", xlabel="x in pixels", ylabel="y in pixels", xticks=ticks)
    first.set(yticks=ticks)
    first.grid(color="white", linewidth=1.5)
    for positions, label in ((True, "with positions"), (False, "without positions")):
        torch.manual_seed(0)
        losses = train(VisionTransformer(positions=positions), images, labels)
        second.plot(range(1, STEPS + 1), losses, label=label)
    second.axhline(0.693, color="grey", linestyle=":", label="ln 2: a guess between two colours")
    second.set(title="training", xlabel="update", ylabel="cross-entropy", ylim=(0, None))
    second.legend()
    return figure


# %%
if __name__ == "__main__":
    main()
    if "--out" in sys.argv:
        folder = Path(sys.argv[-1])
        folder.mkdir(parents=True, exist_ok=True)
        figure().savefig(folder / "vit.png", dpi=90)
