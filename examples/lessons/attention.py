"""Attention in three equivalent ways, the shapes on the way, and two common mistakes.

    python examples/lessons/attention.py [--out DIR]

B images · P patches · D width · N heads · H head size, so that N * H = D
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from transformers import SiglipVisionConfig
from transformers.models.siglip.modeling_siglip import SiglipVisionModel

from pgcli.checkpoints.config import read_config
from pgcli.checkpoints.find import BUILTIN
from pgcli.checkpoints.weights import load_paligemma
from pgcli.model.config import VisionConfig
from pgcli.model.siglip import SiglipAttention

WIDTH, HEADS, PATCHES = 96, 6, 20  # SigLIP So400m: 1152, 16 and 256
IMAGE = BUILTIN.parents[1] / "examples" / "images" / "dusk.jpg"


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The weighted means (..., P, H) of the values, a row for each query.

    A sum of H products of variance 1 has variance H; divided by the root of H it is 1 again, and
    the softmax keeps its gradient. H is the size of one head.
    """
    scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
    return scores.softmax(dim=-1) @ value  # each query's weights sum to one


# %% First: a head is attention on three projections of the patches from D to H numbers.
class Head(nn.Module):
    def __init__(self, width: int, size: int):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, size) for _ in "qkv")

    def forward(self, x_BPD: Tensor) -> Tensor:
        return attend(self.q(x_BPD), self.k(x_BPD), self.v(x_BPD))


class OneHeadAtATime(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = nn.ModuleList(Head(width, width // heads) for _ in range(heads))
        self.out = nn.Linear(width, width)  # mixes the heads, independent until here

    def forward(self, x_BPD: Tensor) -> Tensor:
        return self.out(torch.cat([head(x_BPD) for head in self.heads], dim=-1))


# %% Second: the heads' matrices stacked into one D by D; heads become a dimension, like images.
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


# %% Third: pgcli/model/siglip.py computes all three in one product and stores no P by P scores.
def three_ways() -> dict[str, nn.Module]:
    """The modules with the same weights, stacked: rows of a Linear's matrix are its outputs."""
    first, second = OneHeadAtATime(WIDTH, HEADS), AllHeadsAtOnce(WIDTH, HEADS)
    third = SiglipAttention(VisionConfig(WIDTH, 1, 4 * WIDTH, HEADS, patch_size=14, resolution=56))
    with torch.no_grad():
        for part in ("weight", "bias"):
            for name in "qkv":
                rows = [getattr(getattr(head, name), part) for head in first.heads]
                getattr(getattr(second, name), part).copy_(torch.cat(rows))
            fused = [getattr(layer, part) for layer in (second.q, second.k, second.v)]
            getattr(third.qkv_proj, part).copy_(torch.cat(fused))
    second.out = third.out_proj = first.out
    return {"one head at a time": first, "all heads at once": second, "fused, in pgcli": third}


def layer_of_transformers(ours: AllHeadsAtOnce) -> nn.Module:
    """The attention of layer 0 of transformers' vision model, with our weights (eight tensors)."""
    sizes = {"hidden_size": WIDTH, "intermediate_size": 4 * WIDTH, "num_attention_heads": HEADS}
    reference = SiglipVisionModel(SiglipVisionConfig(**sizes)).encoder.layers[0].self_attn
    for name in ("q", "k", "v", "out"):
        getattr(reference, f"{name}_proj").load_state_dict(getattr(ours, name).state_dict())
    return reference


# %%
@torch.no_grad()
def main() -> None:
    torch.manual_seed(0)
    x_BPD, (_, right, _) = torch.randn(2, PATCHES, WIDTH), (ways := three_ways()).values()
    query, key, value = right.split(x_BPD)
    scores_BNPP = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
    split = list(query.transpose(1, 2).shape)
    print("patches [B,P,D]", list(x_BPD.shape), "-> heads [B,P,N,H]", split)
    print("  -> [B,N,P,H]", list(query.shape), "-> scores [B,N,P,P]", list(scores_BNPP.shape))
    sums = scores_BNPP.softmax(-1).sum(-1)
    print(f"  the weights of a query sum to {sums.min():.3f} ... {sums.max():.3f}")
    spread = (torch.randn(1000, 64) @ torch.randn(64, 1000)).std()
    print(f"  deviation of sums of 64 products: {spread:.1f}; over their root: {spread / 8:.2f}")
    outputs = {name: way(x_BPD) for name, way in ways.items()}
    outputs["layer 0 of transformers"] = layer_of_transformers(right)(x_BPD)[0]
    for name, output in outputs.items():
        torch.testing.assert_close(output, outputs["one head at a time"], rtol=0, atol=1e-6)
        print(f"{name}: shape {list(output.shape)}, equal to the first within 1e-6")
    flat = attend(query * (query.shape[-1] / WIDTH) ** 0.5, key, value).transpose(1, 2).flatten(2)
    mixed = right.out(attend(query, key, value).reshape(x_BPD.shape))
    print(f"mistakes, in outputs with a deviation of {right(x_BPD).std():.2f}:")
    for name, output in {"root of the width": right.out(flat), "no transpose": mixed}.items():
        error = (output - right(x_BPD)).abs().max()  # the shapes are equal
        assert error > 0.05
        print(f"  {name}: wrong by up to {error:.2f}")


# %%
@torch.no_grad()
def figure(row: int = 5, column: int = 2):
    """What a patch of a drawing attends to in the built-in model, by layer and head."""
    from matplotlib import pyplot

    vision = load_paligemma(BUILTIN, read_config(BUILTIN), dtype=torch.float32).vision
    square = Image.open(IMAGE).resize((112, 112), Image.Resampling.BICUBIC)
    pixels_CRR = torch.from_numpy(np.asarray(square) / np.float32(127.5) - 1).permute(2, 0, 1)
    x_BPD = vision.embeddings(pixels_CRR[None])
    figure, grid = pyplot.subplots(2, 4, figsize=(10, 5), layout="constrained")
    for layer, block in enumerate(vision.layers):
        weight_NPP = block.self_attn.weights(block.layer_norm1(x_BPD))[0]
        x_BPD = block(x_BPD)
        if layer not in (0, 3):
            continue
        first, *others = grid[layer // 3]
        first.imshow(square, extent=(-0.5, 7.5, 7.5, -0.5))
        first.set(title="the patch that asks")
        for head, axes in enumerate(others):
            weight_YX = weight_NPP[head, row * 8 + column].unflatten(0, (8, 8))
            figure.colorbar(axes.imshow(weight_YX, vmin=0), ax=axes, label="weight", shrink=0.8)
            axes.set(title=f"layer {layer}, head {head}")
    for axes in grid.flat:
        axes.add_patch(pyplot.Rectangle((column - 0.5, row - 0.5), 1, 1, ec="red", fc="none", lw=2))
        axes.set(xlabel="patch column", ylabel="patch row", xticks=range(8), yticks=range(8))
    return figure


# %%
if __name__ == "__main__":
    main()
    if "--out" in sys.argv:
        folder = Path(sys.argv[-1])
        folder.mkdir(parents=True, exist_ok=True)
        figure().savefig(folder / "attention.png", dpi=90)
