"""Next-token prediction: one pass trains all positions, because the causal mask hides the answers.

    python examples/lessons/next_token.py [--out DIR]

B rows · T tokens · D width · V vocabulary
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pgcli.model.config import DecoderConfig
from pgcli.model.gemma import Gemma

TEXT = "a red star above a blue disc. " * 2
LETTERS = sorted(set(TEXT))
WIDTH, LENGTH, STEPS, BATCH = 32, 24, 150, 32


# %%
class Decoder(nn.Module):
    """A small causal decoder with a tied head, which uses the embedding's matrix itself."""

    def __init__(self, *, causal: bool = True):
        super().__init__()
        self.causal = causal
        self.token = nn.Embedding(len(LETTERS), WIDTH)
        nn.init.normal_(self.token.weight, std=WIDTH**-0.5)
        self.position = nn.Embedding(LENGTH, WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, token_BT: Tensor) -> Tensor:
        """Logits (B, T, V): at each position, of the token that follows it."""
        position_T = torch.arange(token_BT.shape[1])
        # as in Gemma, embeddings are scaled, because a head's matrix has small rows
        x_BTD = self.token(token_BT) * WIDTH**0.5 + self.position(position_T)
        query, key, value = self.qkv(F.layer_norm(x_BTD, (WIDTH,))).chunk(3, dim=-1)
        attention = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        x_BTD = x_BTD + self.out(attention)
        x_BTD = x_BTD + self.down(F.gelu(self.up(F.layer_norm(x_BTD, (WIDTH,)))))
        return F.layer_norm(x_BTD, (WIDTH,)) @ self.token.weight.T


# %%
def loss(model: Decoder, token_BT: Tensor) -> Tensor:
    """The mean of -log p(token | earlier tokens). Targets are the inputs, shifted by one."""
    logits_BTV = model(token_BT[:, :-1])
    return F.cross_entropy(logits_BTV.flatten(0, 1), token_BT[:, 1:].flatten())


def windows(count: int) -> Tensor:
    """Pieces of the text (B, T + 1) from random places."""
    letters = torch.tensor([LETTERS.index(letter) for letter in TEXT])
    starts = torch.randint(len(TEXT) // 2 - 1, (count, 1))
    return letters[starts + torch.arange(LENGTH + 1)]


def train(model: Decoder) -> list[float]:
    """Train on windows of the text; return the losses."""
    optimizer, losses = torch.optim.AdamW(model.parameters(), 1e-2), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        step_loss = loss(model, windows(BATCH))
        step_loss.backward()
        optimizer.step()
        losses.append(step_loss.item())
    return losses


@torch.no_grad()
def continuation(model: Decoder, start: str, length: int) -> str:
    text = start
    while len(text) < length:
        token_BT = torch.tensor([[LETTERS.index(letter) for letter in text[-LENGTH:]]])
        text += LETTERS[int(model(token_BT)[0, -1].argmax())]
    return text


# %%
def main() -> None:
    torch.set_num_threads(1)  # the matrices are small
    torch.manual_seed(0)
    model, token_BT = Decoder(), windows(1)
    chance = torch.tensor(float(len(LETTERS))).log().item()
    print(f"{len(LETTERS)} letters: a guess has the loss ln {len(LETTERS)} = {chance:.2f}")
    each = [
        F.cross_entropy(model(token_BT[:, :end])[:, -1], token_BT[:, end])
        for end in range(1, LENGTH + 1)
    ]
    torch.testing.assert_close(torch.stack(each).mean(), loss(model, token_BT))
    print(f"{LENGTH} prefixes one by one and one causal pass have the same loss")
    changed = token_BT[:, :-1].clone()
    changed[:, -1] = (changed[:, -1] + 1) % len(LETTERS)
    same = torch.isclose(model(changed), model(token_BT[:, :-1]), atol=1e-6).all(-1)[0]
    assert same.tolist() == [True] * (LENGTH - 1) + [False]
    print("another last token changes the last logits only")

    losses = train(model)
    print(f"trained: {losses[0]:.2f} -> {losses[-1]:.2f}; {continuation(model, 'a re', 29)!r}")
    assert continuation(model, "a re", 29) == TEXT[:29]
    open_model = Decoder(causal=False)
    losses = train(open_model)
    text = continuation(open_model, "a re", 29)
    assert text != TEXT[:29]
    print(f"without the mask: {losses[0]:.2f} -> {losses[-1]:.2f}, as the answer is in the input;")
    print("  it has learned to copy what follows, and cannot continue a text")

    config = DecoderConfig(WIDTH, 1, 4 * WIDTH, 1, 1, WIDTH, 1000)
    tied, own = (sum(p.numel() for p in Gemma(config, tied=t).parameters()) for t in (True, False))
    assert own - tied == 1000 * WIDTH
    print(f"pgcli's Gemma of {config.vocab_size} tokens: {tied} weights, {own} with an own head;")
    print(f"  PaliGemma 3b saves {2048 * 257_216 / 1e6:.0f} million")


# %%
def figure():
    """Losses with and without the causal mask, and the next letters of a trained model."""
    from matplotlib import pyplot

    torch.set_num_threads(1)
    torch.manual_seed(0)
    models = {"causal": Decoder(), "without a mask": Decoder(causal=False)}
    figure, (first, second) = pyplot.subplots(1, 2, figsize=(11, 3.8), layout="constrained")
    for name, model in models.items():
        first.plot(range(1, STEPS + 1), train(model), label=name)
    guess = torch.tensor(float(len(LETTERS))).log()
    first.axhline(guess, color="grey", linestyle=":", label=f"a guess: ln {len(LETTERS)}")
    first.set(title="training", xlabel="update", ylabel="loss", ylim=(0, None))
    first.legend()
    text = TEXT[:LENGTH]
    token_BT = torch.tensor([[LETTERS.index(letter) for letter in text]])
    probability_TV = models["causal"](token_BT)[0].softmax(-1).detach()
    shown = second.imshow(probability_TV.T, cmap="viridis", vmin=0, vmax=1, aspect="auto")
    second.set(title="which letter follows?", xlabel="text so far, up to this letter")
    second.set_xticks(range(LENGTH), text.replace(" ", "␣"))
    second.set_yticks(range(len(LETTERS)), "".join(LETTERS).replace(" ", "␣"))
    second.set_ylabel("next letter")
    figure.colorbar(shown, ax=second, label="probability")
    return figure


# %%
if __name__ == "__main__":
    main()
    if "--out" in sys.argv:
        folder = Path(sys.argv[-1])
        folder.mkdir(parents=True, exist_ok=True)
        figure().savefig(folder / "next_token.png", dpi=90)
