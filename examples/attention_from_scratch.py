"""Attention, built three ways from nothing but matrix products, and shown to be one thing.

    python examples/attention_from_scratch.py

Read it from top to bottom. Each way is a small module: one head at a time, as attention is
explained; all heads at once, as it is computed; and with one fused product, as it is computed
fast. The three are given the same weights, asked about the same picture, and must agree.

B pictures · P patches · D width · N heads · H head size, so that N * H = D · Y rows · X columns
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pgcli.model import siglip
from pgcli.model.config import VisionConfig

WIDTH, HEADS = 96, 6  # SigLIP So400m has 1152 and 16
TOLERANCE = 1e-5  # sums are taken in another order, and float32 keeps seven digits


# What attention is. Every patch sends out a query, "what do I look for?", and a key, "what have I
# got?". Where a query and a key point the same way, their product is large. A softmax turns each
# query's products into shares of one whole, and what the patch takes home is the mean of all
# patches' values, weighted by those shares. So no output can leave the range of the values.


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The weighted means (..., P, H) of the values, a row for each query.

    A product of H numbers of variance 1 has the variance H, and a softmax of large numbers is all
    on one patch and learns nothing. The root of H brings the variance back to 1: of H, the size of
    one head, and neither of the width nor of the number of patches.
    """
    scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
    return scores.softmax(dim=-1) @ value


# The first way follows the explanation. A head is attention in a small room of its own: it sees
# the patches through three matrices that make H numbers of D. The heads do not meet before the
# last product, `out`, which is there to mix what they found.


class Head(nn.Module):
    def __init__(self, width: int, size: int):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, size) for _ in "qkv")

    def forward(self, x_BPD: Tensor) -> Tensor:
        return attend(self.q(x_BPD), self.k(x_BPD), self.v(x_BPD))


class OneHeadAtATime(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        # a plain list would hide the heads: not saved, not moved to a device, not trained
        self.heads = nn.ModuleList(Head(width, width // heads) for _ in range(heads))
        self.out = nn.Linear(width, width)

    def forward(self, x_BPD: Tensor) -> Tensor:
        return self.out(torch.cat([head(x_BPD) for head in self.heads], dim=-1))


# The second way does the same sums with larger products. The heads' matrices are stacked into one
# of D by D, so that one product makes all heads' queries side by side. Cutting the width into heads
# and bringing the head in front of the patch lets `attend` run over all heads as it runs over
# pictures: a leading dimension is just one more thing to do at once.


class AllHeadsAtOnce(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.num_heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def split(self, x_BPD: Tensor) -> Tensor:
        """(B, P, D) -> (B, N, P, H)."""
        return x_BPD.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def forward(self, x_BPD: Tensor) -> Tensor:
        query, key, value = (self.split(made(x_BPD)) for made in (self.q, self.k, self.v))
        heads_BNPH = attend(query, key, value)
        # the transpose must be undone before heads are joined; see MISTAKES below
        return self.out(heads_BNPH.transpose(1, 2).flatten(2))


# The third way is for speed. Three products with the same input are one product with the matrices
# stacked, read from memory once; and torch's own attention never writes the P by P scores out.


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


# Stacking works on weights that exist already, which is how a checkpoint with three matrices a
# layer is read into a model with one. Rows of a Linear's matrix are its outputs, so stacking
# outputs is stacking rows: head under head, then queries, keys and values under one another.


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


# What attention reads. To SigLIP a picture is a row of patches: a convolution whose step is its own
# size touches no pixel twice, so it is a matrix product on squares cut out. The grid of squares is
# flattened, and from then on attention knows places only by the numbers that are added to them.


def patches(picture_BCYX: Tensor, size: int) -> Tensor:
    """Squares of `size` pixels as vectors, with their places: (B, P, D)."""
    convolution = nn.Conv2d(3, WIDTH, kernel_size=size, stride=size)
    patch_BPD = convolution(picture_BCYX).flatten(2).transpose(1, 2)
    return patch_BPD + torch.randn(patch_BPD.shape[1:])


# A feature map within a convolutional network, say of a diffusion model, is read the same way, with
# a pixel for a patch: channels last, the grid flattened, attention, and everything put back. It is
# the same attention, weights and all. The sum with the input lets a new layer begin by changing
# little.


def on_a_map(attention: nn.Module, map_BDYX: Tensor) -> Tensor:
    """A feature map in which every pixel has looked at every other: (B, D, Y, X)."""
    pixel_BPD = map_BDYX.flatten(2).transpose(1, 2)
    return map_BDYX + attention(pixel_BPD).transpose(1, 2).unflatten(2, map_BDYX.shape[2:])


# MISTAKES that keep every shape right, so that only numbers show them. Both stand in code that many
# learn from. Joining heads without undoing the transpose deals their outputs to wrong patches, and
# dividing by the root of the width instead of the head's size blurs every softmax.


def joined_wrongly(right: AllHeadsAtOnce, x_BPD: Tensor) -> Tensor:
    query, key, value = (right.split(made(x_BPD)) for made in (right.q, right.k, right.v))
    return right.out(attend(query, key, value).reshape(x_BPD.shape))


def scaled_wrongly(right: AllHeadsAtOnce, x_BPD: Tensor) -> Tensor:
    query, key, value = (right.split(made(x_BPD)) for made in (right.q, right.k, right.v))
    query = query * (query.shape[-1] / x_BPD.shape[-1]) ** 0.5
    return right.out(attend(query, key, value).transpose(1, 2).flatten(2))


def compare(title: str, outputs: dict[str, Tensor]) -> float:
    """Print each output's shape and how far it is at most from the first; return the farthest."""
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

    # pgcli's own eye has the fused form, and its parameters have the names of SigLIP's files
    config = VisionConfig(WIDTH, 1, 4 * WIDTH, HEADS, patch_size=14, resolution=56)
    own = siglip.SiglipAttention(config)
    stack(own.qkv_proj, [ways["fused"].qkv])
    stack(own.out_proj, [ways["fused"].out])
    on_patches["pgcli.model.siglip"] = own(x_BPD)
    farthest = compare("On 16 patches of two pictures:", on_patches)

    map_BDYX = torch.randn(2, WIDTH, 6, 5)
    on_maps = {name: on_a_map(attention, map_BDYX) for name, attention in ways.items()}
    farthest = max(farthest, compare("On a feature map of 6 by 5 pixels:", on_maps))

    right = ways["all heads at once"]
    wrong = {"as it should be": on_patches["all heads at once"]}
    wrong["joined wrongly"] = joined_wrongly(right, x_BPD)
    wrong["scaled wrongly"] = scaled_wrongly(right, x_BPD)
    compare("Mistakes that no shape shows:", wrong)

    if farthest > TOLERANCE:
        raise SystemExit(f"The ways differ by up to {farthest:.1e}.")
    print(f"All ways agree: they differ by at most {farthest:.1e}.")


if __name__ == "__main__":
    main()
