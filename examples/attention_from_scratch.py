"""Implements attention in three ways with matrix products only, and shows that they are equal.

    python examples/attention_from_scratch.py

Read it from top to bottom. Each implementation is a small module: one head at a time, as attention
is usually explained; all heads at once, as it is computed; and with one fused product, for speed.
With the same weights and the same image, all three must agree.

B images · P patches · D width · N heads · H head size, so that N * H = D · Y rows · X columns
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pgcli.model import siglip
from pgcli.model.config import VisionConfig

WIDTH, HEADS = 96, 6  # SigLIP So400m has 1152 and 16
TOLERANCE = 1e-5  # sums are taken in another order, and float32 keeps seven digits


# Attention. Every patch has a query, a key and a value. Where a query and a key have similar
# directions, their product is large. A softmax turns each query's products into weights that sum
# to one, and the patch's output is the mean of all values with these weights. So every output is
# in the range of the values.


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The weighted means (..., P, H) of the values, a row for each query.

    A product of H numbers of variance 1 has variance H, and a softmax of large numbers selects one
    patch and has no gradient. Dividing by the root of H, the size of one head, restores variance 1;
    neither the width nor the number of patches would.
    """
    scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
    return scores.softmax(dim=-1) @ value


# The first implementation follows the explanation. A head is attention on three projections of the
# patches from D to H numbers. The heads are independent up to the last product, `out`, which mixes
# their outputs.


class Head(nn.Module):
    def __init__(self, width: int, size: int):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, size) for _ in "qkv")

    def forward(self, x_BPD: Tensor) -> Tensor:
        return attend(self.q(x_BPD), self.k(x_BPD), self.v(x_BPD))


class OneHeadAtATime(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        # with a plain list, the heads would not be saved, moved to a device or trained
        self.heads = nn.ModuleList(Head(width, width // heads) for _ in range(heads))
        self.out = nn.Linear(width, width)

    def forward(self, x_BPD: Tensor) -> Tensor:
        return self.out(torch.cat([head(x_BPD) for head in self.heads], dim=-1))


# The second implementation computes the same sums with larger products. The heads' matrices are
# stacked into one of D by D, so that one product computes all heads' queries. The width is split
# into heads, and the head dimension is moved before the patches, so that `attend` treats heads as
# it treats images, as a leading dimension.


class AllHeadsAtOnce(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.num_heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def split(self, x_BPD: Tensor) -> Tensor:
        """(B, P, D) -> (B, N, P, H)."""
        return x_BPD.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def forward(self, x_BPD: Tensor) -> Tensor:
        query, key, value = (self.split(project(x_BPD)) for project in (self.q, self.k, self.v))
        heads_BNPH = attend(query, key, value)
        # the transpose must be undone before heads are joined; see MISTAKES below
        return self.out(heads_BNPH.transpose(1, 2).flatten(2))


# The third implementation is for speed. Three products with the same input become one product
# with stacked matrices, which reads the input once, and torch's attention never stores the P by P
# scores.


class Fused(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.num_heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x_BPD: Tensor) -> Tensor:
        qkv = self.qkv(x_BPD).unflatten(-1, (3, self.num_heads, -1))  # (B, P, 3, N, H)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        heads_BNPH = F.scaled_dot_product_attention(query, key, value)
        return self.out(heads_BNPH.transpose(1, 2).flatten(2))


# Existing weights can be stacked, which is how a checkpoint with three matrices per layer is loaded
# into a model with one. The rows of a Linear's matrix are its outputs, so outputs are stacked as
# rows: first the heads, then queries, keys and values.


@torch.no_grad()
def stack(into: nn.Linear, linears: list[nn.Linear]) -> None:
    into.weight.copy_(torch.cat([linear.weight for linear in linears]))
    into.bias.copy_(torch.cat([linear.bias for linear in linears]))


def three_ways() -> dict[str, nn.Module]:
    """The three modules with one set of weights."""
    first = OneHeadAtATime(WIDTH, HEADS)
    second, third = AllHeadsAtOnce(WIDTH, HEADS), Fused(WIDTH, HEADS)
    for name in "qkv":
        stack(getattr(second, name), [getattr(head, name) for head in first.heads])
    stack(third.qkv, [second.q, second.k, second.v])
    second.out, third.out = first.out, first.out
    return {"one head at a time": first, "all heads at once": second, "fused": third}


# The input. SigLIP reads an image as a sequence of patches: a convolution whose stride is its
# size is a matrix product on squares without overlap. The grid of patches is flattened, so that
# positions are known to attention only from the position embeddings.


def patches(image_BCYX: Tensor, size: int) -> Tensor:
    """Patches of `size` by `size` pixels with position embeddings: (B, P, D)."""
    convolution = nn.Conv2d(3, WIDTH, kernel_size=size, stride=size)
    patch_BPD = convolution(image_BCYX).flatten(2).transpose(1, 2)
    return patch_BPD + torch.randn(patch_BPD.shape[1:])


# A feature map of a convolutional network, for example of a diffusion model, is processed in the
# same way, with a pixel for a patch: channels last, flattened grid, attention, and back. The
# weights are the same. With the residual sum, a new layer starts out changing little.


def on_a_map(attention: nn.Module, map_BDYX: Tensor) -> Tensor:
    """A feature map in which every pixel attends to all others: (B, D, Y, X)."""
    pixel_BPD = map_BDYX.flatten(2).transpose(1, 2)
    return map_BDYX + attention(pixel_BPD).transpose(1, 2).unflatten(2, map_BDYX.shape[2:])


# MISTAKES that no shape reveals. Both occur in popular tutorials. Joining heads without undoing
# the transpose assigns their outputs to the wrong patches, and dividing by the root of the width
# instead of the head size flattens every softmax.


def joined_wrongly(right: AllHeadsAtOnce, x_BPD: Tensor) -> Tensor:
    query, key, value = (right.split(project(x_BPD)) for project in (right.q, right.k, right.v))
    return right.out(attend(query, key, value).reshape(x_BPD.shape))


def scaled_wrongly(right: AllHeadsAtOnce, x_BPD: Tensor) -> Tensor:
    query, key, value = (right.split(project(x_BPD)) for project in (right.q, right.k, right.v))
    query = query * (query.shape[-1] / x_BPD.shape[-1]) ** 0.5
    return right.out(attend(query, key, value).transpose(1, 2).flatten(2))


def compare(title: str, outputs: dict[str, Tensor]) -> float:
    """Print each output's shape and largest difference from the first; return the largest."""
    print(title)
    reference, farthest = next(iter(outputs.values())), 0.0
    for name, output in outputs.items():
        difference = (output - reference).abs().max().item()
        farthest = max(farthest, difference)
        print(f"  {name:<28} {tuple(output.shape)!s:<20} difference {difference:.1e}")
    return farthest


@torch.no_grad()
def main() -> None:
    torch.manual_seed(0)
    ways = three_ways()
    x_BPD = patches(torch.randn(2, 3, 56, 56), size=14)
    on_patches = {name: attention(x_BPD) for name, attention in ways.items()}

    # pgcli's vision tower uses the fused form, with the parameter names of SigLIP's checkpoints
    config = VisionConfig(WIDTH, 1, 4 * WIDTH, HEADS, patch_size=14, resolution=56)
    own = siglip.SiglipAttention(config)
    stack(own.qkv_proj, [ways["fused"].qkv])
    stack(own.out_proj, [ways["fused"].out])
    on_patches["pgcli.model.siglip"] = own(x_BPD)
    farthest = compare("On 16 patches of two images:", on_patches)

    map_BDYX = torch.randn(2, WIDTH, 6, 5)
    on_maps = {name: on_a_map(attention, map_BDYX) for name, attention in ways.items()}
    farthest = max(farthest, compare("On a feature map of 6 by 5 pixels:", on_maps))

    right = ways["all heads at once"]
    wrong = {"as it should be": on_patches["all heads at once"]}
    wrong["joined wrongly"] = joined_wrongly(right, x_BPD)
    wrong["scaled wrongly"] = scaled_wrongly(right, x_BPD)
    compare("Mistakes that no shape reveals:", wrong)

    if farthest > TOLERANCE:
        raise SystemExit(f"The ways differ by up to {farthest:.1e}.")
    print(f"All ways agree: they differ by at most {farthest:.1e}.")


if __name__ == "__main__":
    main()
