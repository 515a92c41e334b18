"""From logits to a token: greedy, temperature, top-k and top-p.

    python examples/lessons/sampling.py [--out DIR]

V vocabulary
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor

from pgcli.model.sampling import sample

PROBABILITIES = torch.tensor([0.5, 0.2, 0.1, 0.1, 0.06, 0.04])
DRAWS = 100_000


# %%
def distribution(
    logit_V: Tensor, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0
) -> Tensor:
    """The probabilities of drawing each token; the logits are in descending order.

    Temperature divides the logits, top-k keeps that many tokens, and top-p the first tokens with
    less than p of the mass before them. The kept probabilities are divided by their sum; a second
    softmax would flatten them. Rounding makes equal sums unequal in float32, hence the tolerance.
    """
    probability_V = (logit_V / temperature).softmax(-1)
    if top_k:
        probability_V[top_k:] = 0
    before_V = probability_V.cumsum(-1) - probability_V
    kept_V = before_V < top_p * probability_V.sum() - 1e-6
    kept_V[0] = True  # top_p = 0 keeps the most likely token
    probability_V = probability_V * kept_V
    return probability_V / probability_V.sum()


def entropy(probability_V: Tensor) -> float:
    """The information of a draw in bits."""
    return torch.special.entr(probability_V).sum().item() / torch.tensor(2.0).log().item()


def texts(values: Tensor) -> str:
    return " ".join(f"{value:.4f}" for value in values)


# %%
def main() -> None:
    torch.manual_seed(0)
    logit_V = PROBABILITIES.log()
    print("probabilities       ", texts(PROBABILITIES), " greedy takes the first")
    for top_p in (0.0, 0.7, 0.71, 1.0):
        kept = distribution(logit_V, top_p=top_p)
        print(f"  top-p {top_p:<4}        ", texts(kept))
    kept = distribution(logit_V, top_p=0.7)
    torch.testing.assert_close(kept[:2], torch.tensor([5 / 7, 2 / 7]))
    assert not kept[2:].any()
    print("  0.5 and 0.2 become 5/7 and 2/7, their shares of the mass 0.7 that is kept,")
    again = PROBABILITIES[:2].softmax(-1)
    print(f"  not 0.75 and 0.25; a second softmax would make {texts(again)}")
    exact = PROBABILITIES.cumsum(-1)[1].item()
    print(f"  0.5 + 0.2 is {exact:.9f} in float32: without room a third token would stay")

    entropies = []
    for temperature in (0.2, 0.5, 1.0, 2.0, 100.0):
        values = distribution(logit_V, temperature)
        entropies.append(entropy(values))
        print(f"  temperature {temperature:<6}  ", texts(values), f"{entropies[-1]:.2f} bits")
    assert entropies == sorted(entropies)
    print("  top-k 3             ", texts(distribution(logit_V, top_k=3)))

    print(f"pgcli.model.sampling, {DRAWS:,} draws")
    for options in ({"top_p": 0.7}, {"top_k": 3}, {"temperature": 2.0}, {"temperature": 0.01}):
        settings = {"temperature": 1.0, "top_k": 0, "top_p": 1.0} | options
        draws = sample(logit_V.expand(DRAWS, -1), torch.rand(DRAWS), **settings)
        shares = draws.bincount(minlength=len(logit_V)) / DRAWS
        expected = distribution(logit_V, **settings)
        print(f"  {options}: {texts(shares)}")
        assert not shares[expected == 0].any()
        torch.testing.assert_close(shares, expected, rtol=0, atol=0.01)


# %%
def figure():
    """Where top-p cuts, and what temperature does."""
    from matplotlib import pyplot

    figure, (first, second) = pyplot.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    ranks, kept_V = torch.arange(1, 7), distribution(PROBABILITIES.log(), top_p=0.7)
    first.bar(ranks, kept_V, width=0.75, color="lightgrey", label="divided by their sum")
    first.bar(ranks, PROBABILITIES, width=0.5, label="probability")
    first.step(ranks, PROBABILITIES.cumsum(0), where="mid", color="black", label="sum so far")
    first.axhline(0.7, color="red", linestyle="--", linewidth=1)
    first.axvline(2.5, color="red", linestyle="--", linewidth=1, label="the cut of top-p 0.7")
    first.set(
        title="top-p", xlabel="token, most likely first", ylabel="probability", ylim=(0, 1.05)
    )
    for index, temperature in enumerate((0.5, 1.0, 2.0)):
        values = distribution(PROBABILITIES.log(), temperature)
        second.bar(
            ranks + (index - 1) * 0.27, values, width=0.27, label=f"temperature {temperature}"
        )
    second.set(title="temperature", xlabel="token, most likely first", ylabel="probability")
    for axes in (first, second):
        axes.legend()
    return figure


# %%
if __name__ == "__main__":
    main()
    if "--out" in sys.argv:
        folder = Path(sys.argv[-1])
        folder.mkdir(parents=True, exist_ok=True)
        figure().savefig(folder / "sampling.png", dpi=90)
