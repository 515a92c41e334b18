"""The KV cache: a step computes one slot, and the tokens stay the same.

    python examples/lessons/kv_cache.py [--out DIR]

Image and prompt (the prefix) attend to each other fully, generated tokens to everything before.
So keys and values of earlier slots never change and can be kept.

B rows · T new slots · S slots so far · D width · V vocabulary
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pgcli.model.config import DecoderConfig
from pgcli.model.kv_cache import KVCache

VOCABULARY, WIDTH, DEPTH, PREFIX, NEW = 50, 32, 3, 6, 8

Cache = list[tuple[Tensor, Tensor]]  # keys and values (B, S, D) of each layer


# %%
class Decoder(nn.Module):
    """A small one-head decoder with a learned embedding for each position."""

    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Embedding(64, WIDTH)
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(DEPTH))
        self.out = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))
        self.head = nn.Linear(WIDTH, VOCABULARY)
        for layer in (*self.qkv, *self.out, self.head):
            nn.init.normal_(layer.weight, std=2 * WIDTH**-0.5)  # large enough for varied outputs

    def forward(
        self, token_BT: Tensor, position_BT: Tensor, mask_BTS: Tensor, cache: Cache | None = None
    ) -> Tensor:
        """Logits (B, V) of the token that follows the last slot. The cache grows in place."""
        x_BTD = self.token(token_BT) + self.position(position_BT)
        for layer, (qkv, out) in enumerate(zip(self.qkv, self.out, strict=True)):
            query, key, value = qkv(F.layer_norm(x_BTD, (WIDTH,))).chunk(3, dim=-1)
            if cache is not None:
                if len(cache) > layer:
                    key, value = (
                        torch.cat([old, new], dim=1)
                        for old, new in zip(cache[layer], (key, value), strict=True)
                    )
                cache[layer : layer + 1] = [(key, value)]
            attention = F.scaled_dot_product_attention(query, key, value, attn_mask=mask_BTS)
            x_BTD = x_BTD + out(attention)
        return self.head(x_BTD[:, -1])


# %%
def prefix_mask(is_real_BS: Tensor, prefix: int) -> Tensor:
    """Which slots attend to which (B, S, S): to the real prefix, and to earlier generated ones."""
    slot = torch.arange(is_real_BS.shape[1])
    sees = (slot < prefix) | (slot <= slot[:, None])
    return sees & is_real_BS[:, None]


def generate(model: Decoder, token_BT: Tensor, is_real_BT: Tensor, *, cached: bool) -> Tensor:
    """The greedy continuation (B, NEW). Positions count only real slots, not padding."""
    prefix, cache = token_BT.shape[1], [] if cached else None
    for step in range(NEW):
        position_BT = is_real_BT.cumsum(1)
        new = slice(-1 if cached and step else 0, None)  # the new slot, or all slots again
        mask_BTS = prefix_mask(is_real_BT, prefix)[:, new]
        logits_BV = model(token_BT[:, new], position_BT[:, new], mask_BTS, cache)
        token_BT = torch.cat([token_BT, logits_BV.argmax(-1, keepdim=True)], dim=1)
        is_real_BT = F.pad(is_real_BT, (0, 1), value=True)
    return token_BT[:, prefix:]


# %%
@torch.no_grad()
def main() -> None:
    torch.manual_seed(0)
    model = Decoder()
    token_BT = torch.randint(VOCABULARY, (2, PREFIX))
    is_real_BT = torch.tensor([[True] * PREFIX, [False] * 2 + [True] * (PREFIX - 2)])
    answers = generate(model, token_BT, is_real_BT, cached=False)
    assert torch.equal(generate(model, token_BT, is_real_BT, cached=True), answers)
    print("greedy tokens with and without a cache are equal:", answers[0].tolist())
    alone = generate(model, token_BT[1:, 2:], is_real_BT[1:, 2:], cached=True)
    assert torch.equal(alone[0], answers[1])
    print("a prompt of four tokens alone, and left-padded beside one of six: equal")

    mask_BSS = prefix_mask(F.pad(is_real_BT, (0, 3), value=True), PREFIX)
    print("its mask, padding first, then four slots of prefix, then three of the answer:")
    for row in mask_BSS[1, 2:]:
        print("  " + " ".join(".#"[visible] for visible in row.int()))

    cache: Cache = []  # a prefix that is read token by token cannot attend to later tokens
    for slot in range(PREFIX):
        seen = is_real_BT[:1, : slot + 1]
        position = seen.cumsum(1)[:, -1:]
        logits = model(token_BT[:1, slot : slot + 1], position, seen[:, None], cache)
    expected = model(token_BT[:1], is_real_BT[:1].cumsum(1), prefix_mask(is_real_BT[:1], PREFIX))
    change = (logits - expected).abs().max() / expected.std()
    assert change > 0.1
    print(f"a prefix read token by token is causal: logits change by {change:.1f} deviations")

    ours = KVCache(DecoderConfig(8, 1, 8, 1, 1, 8, 8), max_rows=2, like=torch.empty(0))
    position_BL, masks = ours.insert(2, PREFIX, is_real_BT)
    assert torch.equal(position_BL, is_real_BT.cumsum(1))
    assert torch.equal(masks.full[:, 0, 0], prefix_mask(is_real_BT, PREFIX)[:, 0])
    print("pgcli's cache counts and masks the same")

    matrices = 18 * (2048 * 10 * 256 + 2048 * 2048 + 3 * 2048 * 16384)  # of PaliGemma 3b's decoder
    slots, slot_bytes, head = 300, 2 * 18 * 256 * 2, 2 * 2048 * 257_152
    with_cache, without = (2 * matrices * n + head for n in (1, slots))
    print(f"a step of PaliGemma 3b at {slots} slots: {with_cache / 1e9:.0f} GFLOP with a cache,")
    print(f"  {without / 1e9:.0f} without; a slot takes {slot_bytes // 1024} KiB in bfloat16")


# %%
@torch.no_grad()
def figure():
    """The mask of a padded row, and a layer's keys before and after one step."""
    from matplotlib import pyplot

    torch.manual_seed(0)
    model, token_BT, cache = Decoder(), torch.randint(VOCABULARY, (1, PREFIX + 1)), []
    is_real_BT = torch.ones(1, PREFIX + 1, dtype=torch.bool)
    position_BT, mask_BTS = is_real_BT.cumsum(1), prefix_mask(is_real_BT, PREFIX)
    keys = []
    for new in (slice(0, PREFIX), slice(PREFIX, PREFIX + 1)):
        model(token_BT[:, new], position_BT[:, new], mask_BTS[:, new, : new.stop], cache)
        keys.append(cache[0][0][0])
    padded = F.pad(torch.ones(1, PREFIX + 1, dtype=torch.bool), (2, 0))
    figure, (first, *panels) = pyplot.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
    first.imshow(prefix_mask(padded, PREFIX + 2 - 1)[0], cmap="Greys", vmin=0, vmax=1.6)
    first.set(title="the mask: dark is visible", xlabel="slot attended to", ylabel="slot that asks")
    names = ["pad"] * 2 + ["image"] * 3 + ["prompt"] * 2 + ["answer"] * 2
    first.set_xticks(range(9), names, rotation=60)
    first.set_yticks(range(9), names)
    for axes, key_SD, title in zip(
        panels, keys, ("after the prefix", "after one step"), strict=True
    ):
        padded_SD = F.pad(key_SD, (0, 0, 0, PREFIX + 1 - len(key_SD)), value=torch.nan)
        shown = axes.imshow(padded_SD, cmap="RdBu_r", vmin=-3, vmax=3, aspect="auto")
        axes.axhline(PREFIX - 0.5, color="black")
        axes.set(title=f"keys of layer 0, {title}", xlabel="feature of the key", ylabel="slot")
        figure.colorbar(shown, ax=axes, label="value")
    return figure


# %%
if __name__ == "__main__":
    main()
    if "--out" in sys.argv:
        folder = Path(sys.argv[-1])
        folder.mkdir(parents=True, exist_ok=True)
        figure().savefig(folder / "kv_cache.png", dpi=90)
