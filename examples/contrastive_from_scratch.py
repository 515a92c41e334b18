"""The losses that teach two towers: CLIP's softmax and SigLIP's sigmoid, from their formulas.

    python examples/contrastive_from_scratch.py

Images and texts become vectors; row i of both is a pair. All products of image and text vectors
form a matrix whose diagonal should be high and whose other values should be low. Both losses say so
and differ in what a value is compared with: its row and its column (CLIP), or nothing (SigLIP).

N images, and as many texts · D width
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from pgcli.training.contrastive import sigmoid_contrastive, softmax_contrastive

TOLERANCE = 1e-5
LOGITS = torch.tensor([2, 1, 0.5, -1, -2])  # of one image with five texts; the first is its own


def softmax(logits: Tensor) -> Tensor:
    """Exponentials over their sum, along the last dimension.

    float32 overflows above exp(88.7). A constant that is added to all logits cancels out, so the
    maximum is subtracted first.
    """
    exponential = (logits - logits.amax(-1, keepdim=True)).exp()
    return exponential / exponential.sum(-1, keepdim=True)


def similarity(image_ND: Tensor, text_ND: Tensor) -> Tensor:
    """The cosine of each image (a row) and each text (a column)."""
    image_ND = image_ND / image_ND.norm(dim=-1, keepdim=True)
    return image_ND @ (text_ND / text_ND.norm(dim=-1, keepdim=True)).T


def clip_loss(logit_NN: Tensor) -> Tensor:
    """The mean of -log p(its text | image) over rows, and of -log p(its image | text) over columns.

    The matrix is normalized twice: a row's probabilities sum to one, and so do a column's.
    """
    rows, columns = softmax(logit_NN).diagonal(), softmax(logit_NN.T).diagonal()
    return -(rows.log().mean() + columns.log().mean()) / 2


def siglip_loss(logit_NN: Tensor) -> Tensor:
    """-log sigmoid(label * logit), summed over texts, averaged over images.

    The label is 1 for a pair and -1 for any other value. -log sigmoid(x) is log(1 + exp(-x)), which
    `softplus` computes without overflow. There is nothing to normalize: each value is judged alone.
    """
    label_NN = 2 * torch.eye(len(logit_NN)) - 1
    return F.softplus(-label_NN * logit_NN).sum() / len(logit_NN)


def show_softmax() -> None:
    print("softmax of", LOGITS.tolist())
    print("  sum of exponentials", f"{LOGITS.exp().sum():.4f}")
    print("  probabilities      ", *(f"{p:.8f}" for p in softmax(LOGITS)))
    large = LOGITS + 1000
    print(f"  plus 1000: exp is {large[0].exp():g}, the first probability {softmax(large)[0]:.8f}")


def show_good_and_bad(size: int = 5) -> None:
    """Logits of towers that have learned, of new ones, and of ones that tell nothing apart."""
    good = 4 * torch.eye(size) + 0.3 * torch.randn(size, size)
    bad = torch.randn(size, size)
    print("logits                softmax  sigmoid")
    for name, logit_NN in {"good": good, "bad": bad, "equal": torch.zeros(size, size)}.items():
        print(f"  {name:<18}{clip_loss(logit_NN):9.4f}{siglip_loss(logit_NN):9.4f}")
    print(f"  equal logits are a guess among {size}: ln {size} = {torch.tensor(size).log():.4f}")


def show_library(size: int = 32, width: int = 16) -> None:
    """The formulas equal pgcli's losses, which can do without the whole matrix."""
    image_ND, text_ND = (F.normalize(torch.randn(size, width), dim=-1) for _ in range(2))
    cosine_NN = similarity(3 * image_ND, 5 * text_ND)  # lengths have no effect
    scale, bias = torch.tensor(10.0), torch.tensor(-10.0)
    check("softmax", clip_loss(scale * cosine_NN), softmax_contrastive(image_ND, text_ND, scale))
    ours = sigmoid_contrastive(image_ND, text_ND, scale, bias)
    check("sigmoid", siglip_loss(scale * cosine_NN + bias), ours)

    # N * N - N of the values are no pairs. A bias of -10 lets training begin with all values called
    # no pair, which is nearly right; without it the negatives would decide every first step.
    for start in (0.0, -10.0):
        logit_NN = scale * cosine_NN + start
        negatives = F.softplus(logit_NN).sum() - F.softplus(logit_NN).diagonal().sum()
        share = negatives / size / siglip_loss(logit_NN)
        print(f"  bias {start:5.1f}: the negatives are {share:.1%} of the sigmoid loss")


def show_parts(size: int = 8) -> None:
    """Two devices with half of the images each, against all texts or against half of them."""
    logit_NN, half = 3 * torch.randn(size, size), size // 2
    first, second = logit_NN[:half, :half], logit_NN[half:, half:]
    print("a batch of eight in two parts")
    together, apart = clip_loss(logit_NN), (clip_loss(first) + clip_loss(second)) / 2
    print(f"  softmax {together:.4f}, mean of the parts {apart:.4f}: fewer texts in each sum")
    others = F.softplus(logit_NN[:half, half:]).sum() + F.softplus(logit_NN[half:, :half]).sum()
    blocks = siglip_loss(first) * half + siglip_loss(second) * half + others
    check("sigmoid", siglip_loss(logit_NN), blocks / size)
    changed = logit_NN.clone()
    changed[2, 5] += 1  # one device has a new value of image 2 and text 5
    rows = (softmax(changed) != softmax(logit_NN)).sum()
    terms = (changed.sigmoid() != logit_NN.sigmoid()).sum()
    print(f"  one new value changes {rows} probabilities of the softmax, {terms} of the sigmoid")


def check(name: str, formula: Tensor, other: Tensor) -> None:
    """Print two values; exit where they differ."""
    difference = (formula - other).abs().item()
    print(f"  {name} {formula:.4f}, formula and other way differ by {difference:.0e}")
    if difference > TOLERANCE * formula.abs():
        raise SystemExit(f"{name}: {formula:.6f} and {other:.6f} differ.")


def main() -> None:
    torch.manual_seed(0)
    show_softmax()
    show_good_and_bad()
    print("pgcli.training.contrastive")
    show_library()
    show_parts()


if __name__ == "__main__":
    main()
