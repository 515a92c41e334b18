"""Implements attention in three ways, shows that they are equal, and makes the usual mistakes.

    python examples/attention_from_scratch.py

The last block is that of image generators, equal to diffusers' where that is installed.

B images · P patches · D width · N heads · H head size, so that N * H = D · Y rows · X columns
"""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import Tensor, nn

from pgcli.model.config import VisionConfig
from pgcli.model.siglip import SiglipAttention

WIDTH, HEADS, GROUPS = 96, 6, 8  # SigLIP So400m has a width of 1152 and 16 heads


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The weighted means (..., P, H) of the values, a row for each query.

    A sum of H products of variance 1 has variance H, and a softmax of large numbers selects one
    patch and has no gradient. Dividing by the root of H, the size of one head, restores variance 1.
    """
    scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
    return scores.softmax(dim=-1) @ value  # the weights of a query sum to one


# First: a head is attention on three projections of the patches from D to H numbers. The heads are
# independent up to the last product, `out`, which mixes their outputs.
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


# Second: the same sums with larger products, the heads' matrices stacked into one of D by D. Heads
# are moved before the patches, so that `attend` treats them as it treats images.
class AllHeadsAtOnce(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.num_heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def split(self, x_BPD: Tensor) -> list[Tensor]:
        """Queries, keys and values, (B, N, P, H) each."""
        split = (p(x_BPD).unflatten(-1, (self.num_heads, -1)) for p in (self.q, self.k, self.v))
        return [x_BPNH.transpose(1, 2) for x_BPNH in split]

    def forward(self, x_BPD: Tensor) -> Tensor:
        return self.out(attend(*self.split(x_BPD)).transpose(1, 2).flatten(2))


# Third: pgcli/model/siglip.py makes one product of three, and never stores the P by P scores.
# Existing matrices are loaded by stacking them: the rows of a Linear's matrix are its outputs.
@torch.no_grad()
def stack(into: nn.Linear, *linears: nn.Linear) -> None:
    into.weight.copy_(torch.cat([linear.weight for linear in linears]))
    into.bias.copy_(torch.cat([linear.bias for linear in linears]))


def three_ways() -> dict[str, nn.Module]:
    """The three modules with one set of weights."""
    first, second = OneHeadAtATime(WIDTH, HEADS), AllHeadsAtOnce(WIDTH, HEADS)
    third = SiglipAttention(VisionConfig(WIDTH, 1, 4 * WIDTH, HEADS, patch_size=14, resolution=56))
    for name in "qkv":
        stack(getattr(second, name), *(getattr(head, name) for head in first.heads))
    stack(third.qkv_proj, second.q, second.k, second.v)
    second.out = third.out_proj = first.out
    return {"one head at a time": first, "all heads at once": second, "fused, in pgcli": third}


# An image generator's feature map is read in the same way, with a pixel for a patch. GroupNorm's
# statistics are those of one image, and with the residual sum the block computes a change.
class SpatialAttention(nn.Module):
    def __init__(self, attention: nn.Module, norm: nn.Module):
        super().__init__()
        self.norm, self.attention = norm, attention

    def forward(self, map_BDYX: Tensor) -> Tensor:
        pixel_BPD = self.norm(map_BDYX).flatten(2).transpose(1, 2)
        change_BDP = self.attention(pixel_BPD).transpose(1, 2)
        return map_BDYX + change_BDP.unflatten(2, map_BDYX.shape[2:])


def of_diffusers(ours: AllHeadsAtOnce) -> nn.Module:
    """diffusers' block with our weights."""
    from diffusers.models.attention_processor import Attention

    sizes = {"heads": HEADS, "dim_head": WIDTH // HEADS, "norm_num_groups": GROUPS}
    block = Attention(WIDTH, **sizes, bias=True, residual_connection=True)
    pairs = {block.to_q: ours.q, block.to_k: ours.k, block.to_v: ours.v, block.to_out[0]: ours.out}
    for theirs, own in pairs.items():
        stack(theirs, own)
    return block


def compare(title: str, outputs: dict[str, Tensor], *, equal: bool = True) -> None:
    """Print how much each output differs from the first; exit where equal ones do."""
    print(f"{title}:")
    for name, output in outputs.items():
        difference = (output - next(iter(outputs.values()))).abs().max().item()
        print(f"  {name:<32} {tuple(output.shape)!s:<16} difference {difference:.1e}")
        if equal and difference > 1e-6:
            raise SystemExit(f"{name}: the outputs differ by {difference:.1e}.")


@torch.no_grad()
def main() -> None:
    torch.manual_seed(0)
    x_BPD, map_BDYX = torch.randn(2, 16, WIDTH), torch.randn(2, WIDTH, 6, 5)
    group, batch = nn.GroupNorm(GROUPS, WIDTH), nn.BatchNorm2d(WIDTH)
    _, right, _ = (ways := three_ways()).values()
    compare("Patches of two images", {name: way(x_BPD) for name, way in ways.items()})
    blocks = {name: SpatialAttention(way, group) for name, way in ways.items()}
    blocks |= {"diffusers": of_diffusers(right)} if find_spec("diffusers") else {}
    compare("Feature maps", {name: block(map_BDYX) for name, block in blocks.items()})
    # three mistakes of popular tutorials, which no shape reveals
    query, key, value = right.split(x_BPD)
    flat = attend(query * (query.shape[-1] / WIDTH) ** 0.5, key, value).transpose(1, 2).flatten(2)
    mixed = right.out(attend(query, key, value).reshape(x_BPD.shape))
    outputs = {"correct": right(x_BPD), "root of the width": right.out(flat), "no transpose": mixed}
    compare("Mistakes", outputs, equal=False)
    for norm in (group, batch):  # BatchNorm's statistics are those of all images
        block = SpatialAttention(right, norm)
        outputs = {"in a batch of two": block(map_BDYX)[:1], "alone": block(map_BDYX[:1])}
        compare(f"An image with {type(norm).__name__}", outputs, equal=norm is group)


if __name__ == "__main__":
    main()
