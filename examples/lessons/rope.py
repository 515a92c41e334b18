"""Rotary positions: a score depends on the distance of two tokens, not on their positions.

    python examples/lessons/rope.py [--out DIR]

Each pair of a head's values is rotated by position times frequency. The product of two rotated
vectors depends on the difference of their angles, so nothing is learned or added.

S slots · H head size · h pairs, H / 2
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor

from pgcli.model.config import DecoderConfig
from pgcli.model.gemma import RotaryEmbedding

HEAD, THETA = 256, 10_000.0
DISTANCES = torch.arange(2000)


# %%
def angles(position_S: Tensor) -> Tensor:
    """Position times frequency (S, h): from one radian a token down to 1/10,000."""
    frequency_h = THETA ** -(torch.arange(0, HEAD, 2, dtype=torch.float64) / HEAD)
    return position_S[:, None].double() * frequency_h


def rotate_halves(x_SH: Tensor, position_S: Tensor) -> Tensor:
    """Pair i has the values i and i + H/2, as in Gemma's weights."""
    first, second = x_SH.chunk(2, dim=-1)
    cos, sin = angles(position_S).cos(), angles(position_S).sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def rotate_neighbours(x_SH: Tensor, position_S: Tensor) -> Tensor:
    """Pair i has the values 2i and 2i + 1, as in the paper."""
    first, second = x_SH[:, 0::2], x_SH[:, 1::2]
    cos, sin = angles(position_S).cos(), angles(position_S).sin()
    return torch.stack([first * cos - second * sin, second * cos + first * sin], -1).flatten(1)


def scores(rotate, query_SH: Tensor, key_SH: Tensor, start: int = 0) -> Tensor:
    """The products (S, S) of rotated queries and keys with positions from `start`."""
    position_S = start + torch.arange(len(query_SH))
    return rotate(query_SH, position_S) @ rotate(key_SH, position_S).T


def decay() -> Tensor:
    """The score of a query and a key of ones, by their distance."""
    ones = torch.ones(len(DISTANCES), HEAD, dtype=torch.float64)
    return rotate_halves(ones, DISTANCES) @ ones[0]


# %%
def main() -> None:
    torch.manual_seed(0)
    query_SH, key_SH = torch.randn(2, 8, HEAD, dtype=torch.float64)
    expected = scores(rotate_halves, query_SH, key_SH)
    print("eight queries and keys of 256 values")
    for start in (1, 777):
        moved = scores(rotate_halves, query_SH, key_SH, start)
        torch.testing.assert_close(moved, expected, rtol=0, atol=1e-9)
        print(f"  positions that begin at {start}: the same scores within 1e-9")
    turned = rotate_halves(query_SH, torch.arange(8))
    torch.testing.assert_close(turned.norm(dim=1), query_SH.norm(dim=1))
    assert torch.equal(turned[0], query_SH[0])
    print("  lengths stay, and position 0 is not turned")

    order = torch.cat([torch.arange(0, HEAD, 2), torch.arange(1, HEAD, 2)])
    permuted = scores(rotate_halves, query_SH[:, order], key_SH[:, order])
    plain = scores(rotate_neighbours, query_SH, key_SH)
    torch.testing.assert_close(plain, permuted, rtol=0, atol=1e-9)
    print("pairs of neighbours equal pairs of halves after a permutation of the values;")
    print(f"  without it scores differ by up to {(plain - expected).abs().max():.0f}")

    ours = RotaryEmbedding.of(
        torch.arange(8)[None], DecoderConfig(512, 1, 512, 2, 1, HEAD, 100), torch.float64
    )(query_SH[None, :, None])
    torch.testing.assert_close(ours[0, :, 0], turned, rtol=0, atol=1e-9)
    print("  pgcli turns halves, as Gemma's weights require: equal within 1e-9")

    values = decay()
    print("a query and a key of ones: the score by distance, a trend and not a rule")
    print("  " + ", ".join(f"{d}: {values[d]:.0f}" for d in (0, 10, 100, 1000, 1999)))
    rises = (values.diff() > 0).double().mean()
    assert 0.2 < rises < 0.8
    print(f"  it rises at {rises:.0%} of the steps")

    rounded = torch.tensor([4000.0, 4001.0, 4002.0]).bfloat16()
    assert rounded[0] == rounded[1]
    print("in bfloat16, positions 4000, 4001, 4002 are", rounded.int().tolist())
    print("  so angles are computed in float32")


# %%
def figure():
    """The rotary angles of the first positions, and scores by distance."""
    from matplotlib import pyplot

    random = torch.randn(200, HEAD, dtype=torch.float64, generator=torch.manual_seed(0))
    turned = rotate_halves(random[:1].expand(len(DISTANCES), -1), DISTANCES)
    figure, (first, second) = pyplot.subplots(1, 2, figsize=(11, 3.6), layout="constrained")
    shown = first.imshow(angles(torch.arange(100)).cos().T, cmap="RdBu_r", aspect="auto")
    figure.colorbar(shown, ax=first, label="cosine of the angle")
    first.set(title="angles", xlabel="position", ylabel="pair of values")
    second.plot(DISTANCES, decay(), label="a query and a key of ones")
    second.plot(DISTANCES, turned @ random[0], label="a random vector with itself", linewidth=0.7)
    second.set(title="scores", xlabel="distance in tokens", ylabel="score", xlim=(0, 1999))
    second.legend()
    return figure


# %%
if __name__ == "__main__":
    main()
    if "--out" in sys.argv:
        folder = Path(sys.argv[-1])
        folder.mkdir(parents=True, exist_ok=True)
        figure().savefig(folder / "rope.png", dpi=90)
