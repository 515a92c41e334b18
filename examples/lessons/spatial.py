"""Attention between the pixels of a feature map, as in image generators.

    python examples/lessons/spatial.py [--out DIR]

The pixels of a feature map are treated like patches. The block computes a change of its input:
GroupNorm, attention, sum. It equals diffusers' block, if that is installed.

B images · D channels · Y rows · X columns · P pixels · N heads
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

import pgcli

IMAGE = Path(pgcli.__file__).parents[1] / "examples" / "images" / "dusk.jpg"
WIDTH, HEADS, GROUPS = 32, 8, 8


# %%
class SpatialAttention(nn.Module):
    """Queries, keys and values are cut from each head's own channels, so that heads do not mix."""

    def __init__(self, width: int, heads: int, norm: nn.Module):
        super().__init__()
        self.heads, self.norm = heads, norm
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def attend(self, pixel_BPD: Tensor) -> Tensor:
        """The mean of the values that each pixel attends to (B, P, D), before `out`."""
        split = self.qkv(pixel_BPD).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(*split).transpose(1, 2).flatten(2)

    def forward(self, map_BDYX: Tensor) -> Tensor:
        pixel_BPD = self.norm(map_BDYX).flatten(2).transpose(1, 2)
        change_BDP = self.out(self.attend(pixel_BPD)).transpose(1, 2)
        return map_BDYX + change_BDP.unflatten(2, map_BDYX.shape[2:])


def block_of_diffusers(ours: SpatialAttention) -> nn.Module:
    """diffusers' block with our weights."""
    from diffusers.models.attention_processor import Attention

    sizes = {"heads": HEADS, "dim_head": WIDTH // HEADS, "norm_num_groups": GROUPS}
    reference = Attention(WIDTH, **sizes, bias=True, residual_connection=True)
    layers = (reference.to_q, reference.to_k, reference.to_v)
    for index, layer in enumerate(layers):
        rows = slice(index * WIDTH, (index + 1) * WIDTH)
        layer.weight.copy_(ours.qkv.weight[rows])
        layer.bias.copy_(ours.qkv.bias[rows])
    reference.to_out[0].load_state_dict(ours.out.state_dict())
    return reference


# %%
def show_layout() -> None:
    """How `view`, `transpose` and `reshape` treat the order of a tensor's numbers in memory."""
    map_BDYX = torch.arange(12.0).view(1, 2, 2, 3)
    pixel_BPD = map_BDYX.flatten(2).transpose(1, 2)
    print("a map [1, 2, 2, 3]: strides", map_BDYX.stride(), "contiguous", map_BDYX.is_contiguous())
    print("  its pixels [1, 6, 2]: strides", pixel_BPD.stride(), "the same numbers, not contiguous")
    assert pixel_BPD.data_ptr() == map_BDYX.data_ptr()
    try:
        pixel_BPD.view(1, 12)
    except RuntimeError:
        print("  `view` refuses them, `contiguous` copies them, and `reshape` copies if it must")
    assert pixel_BPD.contiguous().data_ptr() != map_BDYX.data_ptr()
    back = pixel_BPD.transpose(1, 2).unflatten(2, (2, 3))
    assert torch.equal(back, map_BDYX)
    wrong = pixel_BPD.reshape(map_BDYX.shape)
    print("  without the transpose back, channel 0 is", wrong[0, 0].flatten().int().tolist())


# %%
@torch.no_grad()
def main() -> None:
    torch.manual_seed(0)
    show_layout()
    block = SpatialAttention(WIDTH, HEADS, nn.GroupNorm(GROUPS, WIDTH))
    map_BDYX = torch.randn(4, WIDTH, 16, 16)
    output = block(map_BDYX)
    print("feature maps", list(map_BDYX.shape), "->", list(output.shape))
    if find_spec("diffusers"):
        expected = block_of_diffusers(block)(map_BDYX)
        torch.testing.assert_close(output, expected, rtol=0, atol=1e-5)
        print("  equal to diffusers' block within 1e-5")
    turned = block(map_BDYX.rot90(dims=(2, 3)))
    torch.testing.assert_close(turned, output.rot90(dims=(2, 3)), rtol=0, atol=1e-5)
    print("  a turned map gives the turned output: attention has no positions")

    pixel_BPD = torch.randn(1, 6, WIDTH)
    before = block.attend(pixel_BPD)
    block.qkv.weight[:4] += 1  # the queries of head 0
    changed = (block.attend(pixel_BPD) != before).flatten(0, 1).any(0).unflatten(0, (HEADS, -1))
    print("  head 0 has other queries; heads that change:", changed.any(1).nonzero()[:, 0].tolist())
    assert changed.any(1).tolist() == [True] + [False] * 7

    print("an image alone and among others, by the block's norm:")
    for norm in (nn.GroupNorm(GROUPS, WIDTH), nn.BatchNorm2d(WIDTH)):
        block.norm = norm
        change = (block(map_BDYX)[:1] - block(map_BDYX[:1])).abs().max()
        assert (change < 1e-5) == isinstance(norm, nn.GroupNorm)
        print(f"  {type(norm).__name__}: the output differs by {change:.2f}")


# %%
def figure():
    """A drawing as pixels and back, with and without the transpose."""
    from matplotlib import pyplot

    image = np.asarray(Image.open(IMAGE).resize((64, 64), Image.Resampling.BICUBIC))
    map_BDYX = torch.from_numpy(image.copy()).permute(2, 0, 1)[None]
    pixel_BPD = map_BDYX.flatten(2).transpose(1, 2)
    panels = {
        "the map (D, Y, X)": map_BDYX,
        "pixels, transposed back": pixel_BPD.transpose(1, 2).unflatten(2, (64, 64)),
        "pixels, reshaped": pixel_BPD.reshape(map_BDYX.shape),
    }
    figure, row = pyplot.subplots(1, 3, figsize=(9, 3.2), layout="constrained")
    for axes, (title, panel_BDYX) in zip(row, panels.items(), strict=True):
        axes.imshow(panel_BDYX[0].permute(1, 2, 0))
        axes.set(title=title, xlabel="column", ylabel="row")
    return figure


# %%
if __name__ == "__main__":
    main()
    if "--out" in sys.argv:
        folder = Path(sys.argv[-1])
        folder.mkdir(parents=True, exist_ok=True)
        figure().savefig(folder / "spatial.png", dpi=90)
