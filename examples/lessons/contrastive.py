"""The losses that train two towers: CLIP's softmax and SigLIP's sigmoid, from their formulas.

    python examples/lessons/contrastive.py [--out DIR]

The products of N image vectors and their N text vectors form a matrix; its diagonal should be high
and the rest low. CLIP compares a value with its row and its column, SigLIP with nothing.

N images, and as many texts · D width
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pgcli.training.contrastive import sigmoid_contrastive, softmax_contrastive

LOGITS = torch.tensor([2, 1, 0.5, -1, -2])  # of one image with five texts; the first matches
PAIRS, WIDTH, STEPS = 8, 16, 200


# %%
def softmax(logits: Tensor) -> Tensor:
    """Exponentials over their sum. The maximum cancels out; exp(89) would overflow."""
    exponential = (logits - logits.amax(-1, keepdim=True)).exp()
    return exponential / exponential.sum(-1, keepdim=True)


def clip_loss(logit_NN: Tensor) -> Tensor:
    """The mean of -log p(text | image) over rows and of -log p(image | text) over columns."""
    rows, columns = softmax(logit_NN).diagonal(), softmax(logit_NN.T).diagonal()
    return -(rows.log().mean() + columns.log().mean()) / 2


def siglip_loss(logit_NN: Tensor) -> Tensor:
    """-log sigmoid(label * logit), summed over texts, averaged over images. The label of a pair is
    1, of other values -1; -log sigmoid(x) is log(1 + exp(-x)), which is `softplus(-x)`."""
    label_NN = 2 * torch.eye(len(logit_NN)) - 1
    return F.softplus(-label_NN * logit_NN).sum() / len(logit_NN)


# %%
def train() -> tuple[Tensor, Tensor, Tensor]:
    """Cosines of images and texts before and after training two towers, and the logits after it.
    An image is 32 numbers, a thing with noise; a text names the thing."""
    thing_ND, name_ND = torch.randn(PAIRS, 32), torch.eye(PAIRS)
    images, texts = nn.Linear(32, WIDTH), nn.Linear(PAIRS, WIDTH)
    scale, bias = nn.Parameter(torch.tensor(10.0).log()), nn.Parameter(torch.tensor(-10.0))
    weights = [*images.parameters(), *texts.parameters(), scale, bias]
    optimizer, cosines = torch.optim.Adam(weights, 1e-2), []
    for step in range(STEPS + 1):
        noisy_ND = thing_ND + torch.randn(PAIRS, 32)
        image_ND, text_ND = F.normalize(images(noisy_ND), dim=1), F.normalize(texts(name_ND), dim=1)
        if step in (0, STEPS):
            cosines.append((F.normalize(images(thing_ND), dim=1) @ text_ND.T).detach())
        optimizer.zero_grad()
        siglip_loss(scale.exp() * image_ND @ text_ND.T + bias).backward()
        optimizer.step()
    return *cosines, (scale.exp() * cosines[1] + bias).detach()


# %%
def main() -> None:
    torch.manual_seed(0)
    print("softmax of", LOGITS.tolist(), "by hand:", *(f"{p:.4f}" for p in softmax(LOGITS)))
    print(f"  plus 1000, where exp overflows, the first is still {softmax(LOGITS + 1000)[0]:.4f}")
    high_NN, random_NN = 4 * torch.eye(5) + 0.3 * torch.randn(5, 5), torch.randn(5, 5)
    logits = {"a high diagonal": high_NN, "random": random_NN, "all equal": torch.zeros(5, 5)}
    for name, logit_NN in logits.items():
        print(f"  {name}: softmax {clip_loss(logit_NN):.2f}, sigmoid {siglip_loss(logit_NN):.2f}")
    print(f"  equal logits are a guess among five: ln 5 = {torch.tensor(5.0).log():.2f}")

    image_ND, text_ND = (F.normalize(torch.randn(32, WIDTH), dim=-1) for _ in range(2))
    scale, bias, cosine_NN = torch.tensor(10.0), torch.tensor(-10.0), image_ND @ text_ND.T
    clip = softmax_contrastive(image_ND, text_ND, scale)
    siglip = sigmoid_contrastive(image_ND, text_ND, scale, bias)
    torch.testing.assert_close(clip_loss(scale * cosine_NN), clip)
    torch.testing.assert_close(siglip_loss(scale * cosine_NN + bias), siglip)
    print("32 pairs: both formulas equal pgcli's losses")
    for start in (0.0, -10.0):
        lone = F.softplus(scale * cosine_NN + start).fill_diagonal_(0).sum() / 32
        share = lone / siglip_loss(scale * cosine_NN + start)
        print(f"  bias {start:.0f}: pairs that do not match make {share:.1%} of the sigmoid loss")

    logit_NN, other_NN = 3 * torch.randn(8, 8), torch.zeros(8, 8)
    other_NN[2, 5] = 1
    rows = (softmax(logit_NN + other_NN) != softmax(logit_NN)).sum()
    terms = ((logit_NN + other_NN).sigmoid() != logit_NN.sigmoid()).sum()
    print(f"one new logit changes {rows} probabilities of the softmax, {terms} of the sigmoid")
    for name, cosine_NN in zip(("before", "after"), train()[:2], strict=True):
        right = (cosine_NN.argmax(1) == torch.arange(PAIRS)).sum()
        mean = cosine_NN.diagonal().mean()
        print(f"{name} training: mean cosine of pairs {mean:.2f}, {right} of 8 texts found")
    assert right == PAIRS


# %%
def figure():
    """Cosines before and after training, what each loss makes of them, and what it reads."""
    from matplotlib import pyplot

    torch.manual_seed(0)
    before_NN, after_NN, logit_NN = train()
    clip_NN, siglip_NN = torch.zeros(2, PAIRS, PAIRS)
    clip_NN[2] = clip_NN[:, 2] = siglip_NN[2, 5] = 1.0
    panels = [("the labels of SigLIP", 2 * torch.eye(PAIRS) - 1)]
    panels += [("the labels of CLIP", torch.eye(PAIRS))]
    panels += [("CLIP: terms of pair 2", clip_NN), ("SigLIP: one term", siglip_NN)]
    start_NN = 10 * before_NN - 10
    for when, cosine_NN, scaled_NN in (
        ("before", before_NN, start_NN),
        ("after", after_NN, logit_NN),
    ):
        panels += [(f"cosine, {when} training", cosine_NN)]
        panels += [(f"softmax of rows, {when}", softmax(scaled_NN))]
        panels += [(f"softmax of columns, {when}", softmax(scaled_NN.T).T)]
        panels += [(f"sigmoid, {when}", scaled_NN.sigmoid())]
    figure, grid = pyplot.subplots(3, 4, figsize=(11.5, 8), layout="constrained")
    for axes, (title, matrix_NN) in zip(grid.flat, panels[4:] + panels[:4], strict=True):
        diverges = "cosine" in title or "SigLIP" in title[-6:]
        low, colours = (-1, "RdBu_r") if diverges else (0, "viridis")
        shown = axes.imshow(matrix_NN, vmin=low, vmax=1, cmap=colours)
        axes.set(title=title, xlabel="text", ylabel="image")
        figure.colorbar(shown, ax=axes, shrink=0.8)
    return figure


# %%
if __name__ == "__main__":
    main()
    if "--out" in sys.argv:
        folder = Path(sys.argv[-1])
        folder.mkdir(parents=True, exist_ok=True)
        figure().savefig(folder / "contrastive.png", dpi=90)
