"""Grouped queries: several query heads share the keys and values of one head.

    python examples/lessons/grouped_query.py [--out DIR]

A decode step reads the whole KV cache and multiplies little, so reading determines its time. With
one key head for eight query heads, as in PaliGemma 3b, it reads an eighth.

B rows · S slots · N query heads · K key heads · G = N / K · H head size
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from pgcli.model.attention import grouped_attention
from pgcli.model.config import DecoderConfig
from pgcli.model.kv_cache import KVCache

ROWS, SLOTS, HEADS, SIZE = 2, 12, 8, 32


# %%
def attend(query_BNSH: Tensor, key_BNSH: Tensor, value_BNSH: Tensor) -> Tensor:
    scores_BNSS = query_BNSH @ key_BNSH.transpose(-2, -1) / query_BNSH.shape[-1] ** 0.5
    return scores_BNSS.softmax(-1) @ value_BNSH


def attend_grouped(query_BNSH: Tensor, key_BKSH: Tensor, value_BKSH: Tensor) -> Tensor:
    """The query heads of one group are adjacent and share a key head, without a copy."""
    query_BKGSH = query_BNSH.unflatten(1, (key_BKSH.shape[1], -1))
    return attend(query_BKGSH, key_BKSH[:, :, None], value_BKSH[:, :, None]).flatten(1, 2)


def bytes_a_slot(depth: int, key_heads: int, size: int, itemsize: int = 2) -> int:
    """The bytes of keys and values of one slot in all layers."""
    return 2 * depth * key_heads * size * itemsize


# %%
def main() -> None:
    torch.manual_seed(0)
    query_BNSH = torch.randn(ROWS, HEADS, SLOTS, SIZE)
    for heads in (1, 2, 4, 8):
        key, value = torch.randn(2, ROWS, heads, SLOTS, SIZE)
        grouped = attend_grouped(query_BNSH, key, value)
        group = HEADS // heads
        repeated = [x.repeat_interleave(group, dim=1) for x in (key, value)]
        torch.testing.assert_close(grouped, attend(query_BNSH, *repeated), rtol=0, atol=1e-6)
        torch_own = F.scaled_dot_product_attention(query_BNSH, key, value, enable_gqa=True)
        torch.testing.assert_close(grouped, torch_own, rtol=0, atol=1e-6)
        ours = grouped_attention(query_BNSH.transpose(1, 2), key, value, None, scale=SIZE**-0.5)
        expected = grouped.transpose(1, 2).flatten(2)
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-6)
        name = {1: "multi-query", HEADS: "multi-head"}.get(heads, "grouped")
        print(f"key heads: {heads} ({name}), equal to repeated keys, PyTorch and pgcli within 1e-6")
        if 1 < heads < HEADS:
            tiled = [x.repeat(1, group, 1, 1) for x in (key, value)]
            error = (attend(query_BNSH, *tiled) - grouped).abs().max()
            assert error > 0.5
            print(f"  mistake: heads tiled 0 1 0 1 in place of 0 0 1 1, wrong by {error:.1f}")

    print("KV cache of PaliGemma 3b (18 layers, heads of 256), bfloat16")
    for heads in (8, 1):
        slot = bytes_a_slot(18, heads, 256)
        image = 256 * slot / 2**20
        print(f"  key heads: {heads}, {slot // 1024} KiB a slot, {image:.1f} MiB for 256 patches")
    config = DecoderConfig(2048, 18, 16384, 8, 1, 256, 257216)
    cache = KVCache(config, max_rows=1, like=torch.empty(0, dtype=torch.bfloat16))
    cache.insert(1, 256)
    assert cache.nbytes == bytes_a_slot(18, 1, 256) * cache.slots
    print(f"  pgcli's cache of {cache.slots} slots has {cache.nbytes / 2**20:.1f} MiB")


# %%
def figure():
    """Which key head each query head reads, and the memory of the cache."""
    from matplotlib import pyplot

    figure, (*maps, right) = pyplot.subplots(
        1, 4, figsize=(12, 3.4), width_ratios=(1, 1, 1, 1.6), layout="constrained"
    )
    repeated, tiled = torch.arange(2).repeat_interleave(4), torch.arange(2).repeat(4)
    panels = {"1 key head": torch.zeros(8).long(), "2 key heads": repeated, "tiled: wrong": tiled}
    for axes, (title, head_N) in zip(maps, panels.items(), strict=True):
        axes.imshow(F.one_hot(head_N), cmap="Greys", vmin=0, vmax=1.5, aspect="auto")
        axes.set(title=title, xlabel="key head", ylabel="query head")
        axes.set(xticks=range(int(head_N.max()) + 1), yticks=range(8))
    slot_S = torch.arange(4500)
    for heads, name in (
        (8, "8: multi-head"),
        (4, "4: grouped"),
        (1, "1: multi-query, PaliGemma 3b"),
    ):
        right.plot(slot_S, slot_S * bytes_a_slot(18, heads, 256) / 2**20, label=name)
    for resolution, patches in ((224, 256), (448, 1024), (896, 4096)):
        right.axvline(patches, color="grey", linestyle=":", linewidth=1)
        right.text(patches, 250, f"{resolution} px", rotation=90, ha="right", fontsize=8)
    right.set(title="cache of one row", xlabel="slots", ylabel="MiB in bfloat16", ylim=(0, 640))
    right.legend(title="key heads", loc="upper left", fontsize=8)
    return figure


# %%
if __name__ == "__main__":
    main()
    if "--out" in sys.argv:
        folder = Path(sys.argv[-1])
        folder.mkdir(parents=True, exist_ok=True)
        figure().savefig(folder / "grouped_query.png", dpi=90)
