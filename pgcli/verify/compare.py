"""Compares tensors, tokens, prompts and pixels, and separates rounding errors from faults.

B rows · P patches · L tokens of an answer · D width · V vocabulary
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from pgcli.checkpoints.preprocessing import Preprocessing
from pgcli.images import ImageLimits, load_image
from pgcli.records import DecodedImage
from pgcli.text import first_line
from pgcli.verify import reference

# The documented bound in float32 for values around 1. Rounding errors are proportional to the
# summed values, so for larger values (logits of real checkpoints reach 30 to 100) the bound is
# relative to the largest: about 800 times float32's precision, for the rounding of 50 layers. A
# fault, such as another norm or position, has errors that are orders of magnitude larger.
EXACT = 1e-4
TIE = 1e-4
# Two correct programs differ by about the noise floor, since they round at different points. The
# mean over all values varies little between programs, the maximum of millions varies more.
MEAN_FACTOR, LARGEST_FACTOR = 2, 3  # times the noise floor
FEW = 1000  # values, whose mean varies as much as their maximum
ROUNDING = 2**-8  # maximum relative error of bfloat16


@dataclass(frozen=True, slots=True)
class Outputs:
    """A program's outputs, in float32 on the CPU: a tensor of each stage, and generated tokens.

    Tokens include the stop token. `steps` has for each row the logits (tokens, vocabulary) of the
    generated tokens, or is None if they were not recorded. `terms` has, for stages that may be
    much smaller than the terms of their sums, the size of these terms and so of their rounding.
    """

    tensors: Mapping[str, Tensor]
    tokens: tuple[tuple[int, ...], ...] = ()
    steps: tuple[Tensor, ...] | None = None
    terms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NoiseFloor:
    """The difference of transformers' two attention implementations, which is rounding noise."""

    largest: float
    mean: float


@dataclass(frozen=True, slots=True)
class TensorComparison:
    """A stage's tensor compared with transformers': same if `largest` and `mean` are in bounds.

    `scale` is transformers' largest absolute value. `first` is the index of the first value out of
    bounds, or of the largest difference: row, patch and channel, or row and token.
    """

    stage: str
    same: bool
    largest: float | None
    mean: float | None
    largest_bound: float
    mean_bound: float | None
    scale: float
    floor: NoiseFloor | None
    first: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first different token of a row, and the gap of transformers' logits of the two tokens.

    Token -1 means that the answer has already ended; then there is no gap.
    """

    row: int
    step: int
    ours: int
    theirs: int
    gap: float | None
    tie: bool


@dataclass(frozen=True, slots=True)
class TokenComparison:
    """Generated tokens compared with transformers': same if rows diverge at ties only.

    `agreeing` of `tokens` precede any divergence. `divergence_floor` is the number of rows in which
    transformers' two attention implementations diverge.
    """

    stage: str
    same: bool
    rows: int
    tokens: int
    agreeing: int
    tie_bound: float
    divergences: tuple[Divergence, ...]
    divergence_floor: int | None


def compare_tensors(
    stage: str,
    ours: Tensor,
    reference: Tensor,
    eager: Tensor | None,
    *,
    exact: bool,
    exact_bound: float = EXACT,
    terms: float = 0.0,
) -> TensorComparison:
    """Compare a stage; `eager` is transformers' with eager attention, for the noise floor.

    In bfloat16 the rounding is relative to the values, or to the `terms` of their sums if larger.

    With `exact`, for float32, the fixed `exact_bound` applies without `eager`. A model that
    amplifies rounding errors beyond it is compared with the noise floor, like every model in
    bfloat16.
    """
    difference = (ours - reference).abs()
    largest, mean = difference.max().item(), difference.mean().item()
    scale = reference.abs().max().item()
    # two stored values may differ by one rounding step even if the noise is zero
    largest_bound = exact_bound * max(1.0, scale) if exact else ROUNDING * max(scale, terms)
    floor, mean_bound = None, None
    if eager is not None:
        noise = (eager - reference).abs()
        floor = NoiseFloor(noise.max().item(), noise.mean().item())
        least = largest_bound if exact else ROUNDING / 2 * reference.abs().mean().item()
        mean_bound = max(MEAN_FACTOR * floor.mean, least)
        largest_bound = max(LARGEST_FACTOR * floor.largest, largest_bound)
        if difference.numel() < FEW:
            mean_bound = largest_bound
    # written so that NaN is not the same
    same = largest <= largest_bound and (mean_bound is None or mean <= mean_bound)
    finite = largest < float("inf")
    return TensorComparison(
        stage,
        same,
        largest if finite else None,
        mean if finite else None,
        largest_bound,
        mean_bound,
        scale,
        floor,
        None if same else _first(difference, largest_bound),
    )


def _first(difference: Tensor, bound: float) -> tuple[int, ...]:
    beyond = ~(difference <= bound)
    flat = beyond.flatten().int().argmax() if bool(beyond.any()) else difference.argmax()
    return tuple(int(index) for index in torch.unravel_index(flat, difference.shape))


def compare_tokens(
    ours: Outputs,
    reference: Outputs,
    eager: Outputs | None,
    image_token: int,
    *,
    exact: bool,
) -> TokenComparison:
    """Compare each row up to its first different token; later tokens have different prefixes.

    With `exact` a tie is a gap of at most TIE; otherwise a gap that rounding noise can cause.
    """
    bound, divergence_floor = TIE, None
    if eager is not None:
        noise, divergence_floor = _noise(reference, eager, image_token)
        bound = TIE if exact else noise
    divergences = _divergences(ours.tokens, reference, image_token, bound)
    diverged = {divergence.row: divergence.step for divergence in divergences}
    lengths = [max(map(len, pair)) for pair in zip(ours.tokens, reference.tokens, strict=True)]
    return TokenComparison(
        stage="generated tokens",
        same=all(divergence.tie for divergence in divergences),
        rows=len(lengths),
        tokens=sum(lengths),
        agreeing=sum(diverged.get(row, length) for row, length in enumerate(lengths)),
        tie_bound=bound,
        divergences=divergences,
        divergence_floor=divergence_floor,
    )


def _divergences(
    ours: Sequence[tuple[int, ...]], reference: Outputs, image_token: int, bound: float
) -> tuple[Divergence, ...]:
    assert reference.steps is not None
    divergences = []
    for row, (tokens, expected) in enumerate(zip(ours, reference.tokens, strict=True)):
        step = _first_different(tokens, expected)
        if step is None:
            continue
        if step == min(len(tokens), len(expected)):
            # one answer ended earlier, without a stop token
            ended = (*tokens, -1)[step], (*expected, -1)[step]
            divergences.append(Divergence(row, step, *ended, gap=None, tie=False))
            continue
        logits_V = reference.steps[row][step].clone()
        logits_V[image_token : image_token + 1] = -torch.inf
        # with a setting such as a repetition penalty, transformers does not select the best token
        pair = tokens[step], expected[step]
        gap = (logits_V.max() - logits_V[[*pair]].min()).item()
        divergences.append(Divergence(row, step, *pair, gap, tie=gap <= bound))
    return tuple(divergences)


def _first_different(first: tuple[int, ...], second: tuple[int, ...]) -> int | None:
    if first == second:
        return None
    shared = min(len(first), len(second))
    return next((n for n in range(shared) if first[n] != second[n]), shared)


def _noise(reference: Outputs, eager: Outputs, image_token: int) -> tuple[float, int]:
    """The largest gap of two logits that is a tie in bfloat16, and the number of divergent rows.

    Either logit may be off by the largest difference of transformers' two attention
    implementations while their tokens are equal.
    """
    assert reference.steps is not None
    assert eager.steps is not None
    divergences = _divergences(eager.tokens, reference, image_token, 0.0)
    diverged = {divergence.row: divergence.step for divergence in divergences}
    largest = best = 0.0
    for row, (reference_LV, eager_LV) in enumerate(zip(reference.steps, eager.steps, strict=True)):
        shared = min(diverged.get(row, len(reference_LV)) + 1, len(reference_LV), len(eager_LV))
        largest = max(largest, (reference_LV[:shared] - eager_LV[:shared]).abs().max().item())
        best = max(best, reference_LV.max().item())
    return 2 * max(largest, ROUNDING * best), len(diverged)


@dataclass(frozen=True, slots=True)
class PromptComparison:
    """Whether prompts have equal ids; `same` is None if transformers cannot read the tokenizer."""

    same: bool | None
    first: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class PixelComparison:
    """The difference of the preprocessed images, in levels of 255."""

    largest: float
    mean: float


def compare_prompts(
    texts: Sequence[str],
    ours: Sequence[Sequence[int]],
    read_expected: Callable[[], Sequence[Sequence[int]]],
) -> PromptComparison:
    """Compare the ids of each text; `first` is the first that differs."""
    try:
        expected = read_expected()
    except (OSError, ValueError, ImportError, KeyError, AttributeError, TypeError) as error:
        # a tokenizer that transformers cannot read proves nothing
        return PromptComparison(None, reason=first_line(error))
    for text, ids, expected_ids in zip(texts, ours, expected, strict=True):
        if ids != expected_ids:
            return PromptComparison(same=False, first=text)
    return PromptComparison(same=True)


def compare_pixels(
    folder: Path, images: Sequence[DecodedImage], preprocessing: Preprocessing
) -> PixelComparison | None:
    """Compare the preprocessed pixels of the same upright images; None without a processor."""
    mean, std = torch.tensor(preprocessing.mean), torch.tensor(preprocessing.std)
    differences = []
    for decoded in images:
        item = decoded.item
        image = load_image(item.data if item.path is None else item.path, ImageLimits())
        try:
            pixels_CRR = reference.processed_pixels(folder, image)[0].float()
        except (OSError, ValueError, ImportError, KeyError, AttributeError, TypeError):
            return None
        expected = (pixels_CRR.permute(1, 2, 0) * std + mean) * 255
        assert decoded.pixels is not None
        pixels = torch.from_numpy(decoded.pixels).float()
        if pixels.shape != expected.shape:
            return None
        differences.append((pixels - expected).abs())
    stacked = torch.stack(differences)
    return PixelComparison(stacked.max().item(), stacked.mean().item())
