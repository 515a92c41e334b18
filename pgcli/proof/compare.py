"""How far two programs' numbers and tokens lie apart, and whether that is rounding or a fault.

B rows · P patches · L steps of an answer · D width · V vocabulary
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pgcli.proof.inputs import Outputs

# The contract's number for float32, for values around 1. Rounding errors are a share of the values
# that are summed, so where the largest is above 1 (real checkpoints' logits reach 30 to 100) this
# is a share of it: some 800 times float32's own precision, room for the rounding of 50 layers. A
# fault in kind, a norm or a position that is not transformers', is orders of magnitude above.
EXACT = 1e-4
TIE = 1e-4
# Two right programs differ by the floor or so, being rounded in different places; on average over
# all values that is a steady figure, the largest of millions is not.
MEAN_FLOORS, LARGEST_FLOORS = 2, 3
ROUNDING = 2**-8  # of a value stored as bfloat16, at most


@dataclass(frozen=True, slots=True)
class Floor:
    """What transformers' two ways to compute attention differ by: noise, no fault of either."""

    largest: float
    mean: float


@dataclass(frozen=True, slots=True)
class Numbers:
    """A stage's numbers against transformers': same where `largest` and `mean` keep the bounds.

    `scale` is the largest of transformers' own. `first` is where the first value lies that
    leaves the bound, or else the farthest: row, patch and channel, or row and token.
    """

    stage: str
    same: bool
    largest: float | None
    mean: float | None
    largest_bound: float
    mean_bound: float | None
    scale: float
    floor: Floor | None
    first: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Parting:
    """Where a row's tokens part: the step, and how far transformers' logits of the two lie apart.

    Token -1 stands for an answer that has ended already; then there is no gap.
    """

    row: int
    step: int
    ours: int
    theirs: int
    gap: float | None
    tie: bool


@dataclass(frozen=True, slots=True)
class Tokens:
    """Generated tokens against transformers': same where rows part at ties only.

    `agreeing` of `tokens` come before any parting. `floor_partings` are the rows in which
    transformers' two ways to compute attention part.
    """

    stage: str
    same: bool
    rows: int
    tokens: int
    agreeing: int
    tie_bound: float
    partings: tuple[Parting, ...]
    floor_partings: int | None


def numbers(
    stage: str, ours: Tensor, theirs: Tensor, other: Tensor | None, *, exact: bool
) -> Numbers:
    """Compare a stage; `other` is transformers' with eager attention, which tells the noise floor.

    With `exact`, float32's way, the contract's number is enough where no floor is known; a model
    that magnifies rounding beyond it is judged by the floor, as every model is in bfloat16.
    """
    apart = (ours - theirs).abs()
    largest, mean = apart.max().item(), apart.mean().item()
    scale = theirs.abs().max().item()
    # two stored values may differ by a rounding even where the noise happens to be none
    largest_bound = EXACT * max(1.0, scale) if exact else ROUNDING * scale
    floor, mean_bound = None, None
    if other is not None:
        noise = (other - theirs).abs()
        floor = Floor(noise.max().item(), noise.mean().item())
        least = largest_bound if exact else ROUNDING / 2 * theirs.abs().mean().item()
        mean_bound = max(MEAN_FLOORS * floor.mean, least)
        largest_bound = max(LARGEST_FLOORS * floor.largest, largest_bound)
    # in this way round, what is not a number is not the same
    same = largest <= largest_bound and (mean_bound is None or mean <= mean_bound)
    finite = largest < float("inf")
    return Numbers(
        stage,
        same,
        largest if finite else None,
        mean if finite else None,
        largest_bound,
        mean_bound,
        scale,
        floor,
        None if same else _first(apart, largest_bound),
    )


def _first(apart: Tensor, bound: float) -> tuple[int, ...]:
    beyond = ~(apart <= bound)
    flat = beyond.flatten().int().argmax() if bool(beyond.any()) else apart.argmax()
    return tuple(int(place) for place in torch.unravel_index(flat, apart.shape))


def tokens(
    ours: Outputs, theirs: Outputs, other: Outputs | None, image_token: int, *, exact: bool
) -> Tokens:
    """Compare answers up to where each row parts; beyond, the two answer different questions.

    With `exact` a tie is the contract's; else two logits no farther apart than noise can bring.
    """
    bound, floor_partings = TIE, None
    if other is not None:
        noise, floor_partings = _noise(theirs, other, image_token)
        bound = TIE if exact else noise
    found = _partings(ours.tokens, theirs, image_token, bound)
    parted = {parting.row: parting.step for parting in found}
    lengths = [max(map(len, pair)) for pair in zip(ours.tokens, theirs.tokens, strict=True)]
    return Tokens(
        stage="generated tokens",
        same=all(parting.tie for parting in found),
        rows=len(lengths),
        tokens=sum(lengths),
        agreeing=sum(parted.get(row, length) for row, length in enumerate(lengths)),
        tie_bound=bound,
        partings=found,
        floor_partings=floor_partings,
    )


def _partings(
    ours: Sequence[tuple[int, ...]], theirs: Outputs, image_token: int, bound: float
) -> tuple[Parting, ...]:
    assert theirs.steps is not None
    found = []
    for row, (mine, other) in enumerate(zip(ours, theirs.tokens, strict=True)):
        step = _parting_step(mine, other)
        if step is None:
            continue
        if step == min(len(mine), len(other)):  # one ended before the other, without a stop token
            ended = (*mine, -1)[step], (*other, -1)[step]
            found.append(Parting(row, step, *ended, gap=None, tie=False))
            continue
        logits_V = theirs.steps[row][step].clone()
        logits_V[image_token : image_token + 1] = -torch.inf
        gap = (logits_V.max() - logits_V[mine[step]]).item()
        found.append(Parting(row, step, mine[step], other[step], gap, tie=gap <= bound))
    return tuple(found)


def _parting_step(first: tuple[int, ...], second: tuple[int, ...]) -> int | None:
    if first == second:
        return None
    shared = min(len(first), len(second))
    return next((n for n in range(shared) if first[n] != second[n]), shared)


def _noise(theirs: Outputs, other: Outputs, image_token: int) -> tuple[float, int]:
    """How far two logits may lie apart and still be a tie in bfloat16, and the rows that part.

    Each of the two may be off by the most that transformers' own differ by while its two ways
    still share what they have read.
    """
    assert theirs.steps is not None
    assert other.steps is not None
    partings = _partings(other.tokens, theirs, image_token, 0.0)
    parted = {parting.row: parting.step for parting in partings}
    largest = best = 0.0
    for row, (one_LV, two_LV) in enumerate(zip(theirs.steps, other.steps, strict=True)):
        shared = min(parted.get(row, len(one_LV)) + 1, len(one_LV), len(two_LV))
        largest = max(largest, (one_LV[:shared] - two_LV[:shared]).abs().max().item())
        best = max(best, one_LV.max().item())
    return 2 * max(largest, ROUNDING * best), len(parted)
