"""Sampling keeps the same tokens as transformers, can be greedy, and draws each row separately."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from pgcli.checkpoints import weights
from pgcli.checkpoints.config import read_config
from pgcli.engine import sampler
from pgcli.engine.sampler import GREEDY, OutputVocabulary, SamplingParams, logsumexp, mask_invalid
from pgcli.model.paligemma import PaliGemma
from pgcli.model.sampling import NEIGHBOURS, sample, top_tokens
from tests.support.sequences import make_sequences, next_tokens, run_together, vocabulary_of
from tests.support.tiny import PATCHES, normal

DRAWS = 100_000
#: Unsorted, like a model's.
PROBABILITY = torch.tensor([0.1, 0.05, 0.5, 0.1, 0.2, 0.05])


def shares(probability: Tensor, sampling: SamplingParams) -> list[float]:
    """The relative frequency of each token over evenly spaced draws."""
    draw_B = torch.linspace(0, 1, DRAWS + 1)[:-1]
    logits_BV = probability.log().expand(len(draw_B), -1)
    token_B = sample(logits_BV, draw_B, sampling.temperature, sampling.top_k, sampling.top_p)
    counts = torch.bincount(token_B, minlength=len(probability))
    return (counts / len(draw_B)).tolist()


def kept(probability: Tensor, sampling: SamplingParams) -> set[int]:
    return {token for token, share in enumerate(shares(probability, sampling)) if share}


def chosen(logits_BV: Tensor, sampling: SamplingParams, keys: list[str]) -> list[int]:
    sequences = make_sequences([[2]] * len(keys), 1, sampling, keys)
    vocabulary = OutputVocabulary(logits_BV.shape[1], 10**9, ())
    return next_tokens(logits_BV, sequences, vocabulary)[0].tolist()


# Logits over the vocabulary


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("columns", [1, 7, 99, 100, 1000])
def test_chunked_logsumexp_equals_the_unchunked_one(monkeypatch, dtype, columns):
    monkeypatch.setattr(sampler, "LOGSUMEXP_CHUNK", columns)
    logits_BV = (torch.randn(5, 100, generator=torch.Generator().manual_seed(1)) * 9).to(dtype)
    logits_BV[1, :60] = -torch.inf  # whole chunks without a valid token
    found = logsumexp(logits_BV)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, logits_BV.float().logsumexp(-1), rtol=1e-6, atol=1e-6)


def test_logsumexp_chunks_stay_within_their_size(monkeypatch):
    monkeypatch.setattr(sampler, "LOGSUMEXP_CHUNK", 16)
    largest: list[Any] = []
    whole = torch.Tensor.logsumexp
    monkeypatch.setattr(
        torch.Tensor, "logsumexp", lambda x, *dims: (largest.append(x.shape), whole(x, *dims))[1]
    )
    logsumexp(torch.zeros(3, 100))
    assert max(shape[1] for shape in largest if len(shape) == 2 and shape[0] == 3) == 16


def test_invalid_tokens_are_masked_in_place():
    logits_BV = torch.zeros(2, 10)
    found = mask_invalid(logits_BV, OutputVocabulary(8, 3, ()))
    assert found.shape == (2, 8)
    assert found.data_ptr() == logits_BV.data_ptr(), "not a copy"
    assert found[:, 3].isneginf().all()
    assert found.isneginf().sum() == 2
    assert mask_invalid(torch.zeros(2, 10), OutputVocabulary(8, 9, ())).isfinite().all()


# Greedy


def test_greedy_takes_the_first_of_the_highest_scores():
    logits_BV = torch.tensor([[1.0, 3.0, 2.0], [5.0, -1.0, 5.0], [0.0, 0.0, 0.0]])
    assert chosen(logits_BV, GREEDY, list("abc")) == [1, 0, 0]


@pytest.mark.parametrize(
    "sampling",
    [
        *(SamplingParams(0, 0.1), SamplingParams(0, 1, 1), SamplingParams(0, seed=7)),
        *map(SamplingParams, (0.01, 1e-6, 1e-30, 1e-46, 5e-324)),
    ],
)
def test_without_a_temperature_or_with_hardly_any_it_is_greedy(sampling):
    logits_BV = normal(50, 9, dtype=torch.float32) * 10
    expected = logits_BV.argmax(-1).tolist()
    assert chosen(logits_BV, sampling, [str(n) for n in range(50)]) == expected


# Sampling


@pytest.mark.parametrize(
    ("top_p", "expected"),
    [
        (0.7, {2, 4}),  # 0.5 + 0.2 is 0.7, though not in float32
        (0.5, {2}),
        (0.51, {2, 4}),
        (0.71, {2, 4, 0}),  # of the two with 0.1 the first
        (0.85, {2, 4, 0, 3}),
        (1e-9, {2}),
        (0, {2}),
    ],
)
def test_top_p_keeps_tokens_until_their_mass_reaches_p(top_p, expected):
    assert kept(PROBABILITY, SamplingParams(temperature=1, top_p=top_p)) == expected


@pytest.mark.parametrize("count", [1, 3, 40])
@pytest.mark.parametrize("size", [40, 40 * NEIGHBOURS, 40 * NEIGHBOURS + 1, 9000])
def test_the_first_tokens_equal_a_stable_sort(size, count):
    """Also with many equal logits, or only infinite ones."""
    logits_BV = (normal(5, size) * 2).bfloat16()  # many are equal
    logits_BV[0] = 0
    logits_BV[1, ::2] = -torch.inf
    logits_BV[2] = -torch.inf
    logits_BV[3, size - 30 :] = 9
    order_BV = logits_BV.float().sort(dim=1, descending=True, stable=True).indices
    assert torch.equal(top_tokens(logits_BV, count), order_BV[:, :count])


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (4, 1.0), (0, 0.8), (5, 0.6), (1, 0.9)])
def test_shares_equal_transformers(temperature, top_k, top_p):
    """Its warpers in the order of `generate`: temperature, top-k, then top-p of the rest."""
    logits_BV = normal(1, 9, dtype=torch.float32) * 2
    expected_BV = TemperatureLogitsWarper(temperature)(None, logits_BV)
    if top_k:
        expected_BV = TopKLogitsWarper(top_k)(None, expected_BV)
    if top_p < 1:
        expected_BV = TopPLogitsWarper(top_p)(None, expected_BV)
    found = shares(logits_BV[0].softmax(-1), SamplingParams(temperature, top_p, top_k))
    assert found == pytest.approx(expected_BV[0].softmax(-1).tolist(), abs=3e-5)


@pytest.mark.parametrize("temperature", [1e18, 1e39, float("inf")])
def test_at_an_extreme_temperature_all_tokens_are_equally_likely(temperature):
    """Except for masked tokens."""
    probability = torch.cat([PROBABILITY, torch.zeros(1)])
    found = shares(probability, SamplingParams(temperature))
    assert found == pytest.approx([*[1 / 6] * 6, 0], abs=1e-4)


def test_probability_ignores_temperature_and_filters():
    """A token's probability comes from the unscaled, unfiltered logits."""
    sampling = SamplingParams(temperature=3, top_p=0.9, top_k=4)
    sequences = make_sequences([[2]] * 20, 1, sampling)
    logits_BV, vocabulary = PROBABILITY.log().expand(20, -1) + 5, OutputVocabulary(6, 10**9, ())
    token_B, logprob_B = next_tokens(logits_BV, sequences, vocabulary)
    torch.testing.assert_close(logprob_B, PROBABILITY.log()[token_B])
    assert len(set(token_B.tolist())) > 1


# Random numbers of each row


@pytest.fixture(scope="module")
def model(tiny) -> PaliGemma:
    return weights.load_paligemma(tiny, read_config(tiny), dtype=torch.float64)


PROMPTS = [[2, 300, 108], [2, 301, 302, 303, 108], [2, 108], [2, 420, 421, 108]]
KEYS = ["0 caption en", "1 caption en", "1 ocr", "7 caption en"]
WARM = SamplingParams(temperature=1, top_p=0.9, seed=5)


def drawn(
    model: PaliGemma,
    patch_BPD: Tensor,
    prompts: list[list[int]],
    keys: list[str],
    how: SamplingParams,
) -> list[list[int]]:
    vocabulary = vocabulary_of(model, 1, image_token=model.config.image_token_id)
    rows = run_together(model, patch_BPD, prompts, vocabulary, 6, sampling=how, keys=keys)
    return [row.tokens for row in rows]


def test_a_rows_draws_do_not_depend_on_its_batch(model):
    patch_BPD = normal(4, PATCHES, model.config.decoder.width)
    together = drawn(model, patch_BPD, PROMPTS, KEYS, WARM)
    for n in range(4):
        alone = drawn(model, patch_BPD[[n]], [PROMPTS[n]], [KEYS[n]], WARM)
        assert alone == [together[n]]
    backwards = drawn(model, patch_BPD.flip(0), PROMPTS[::-1], KEYS[::-1], WARM)
    assert backwards == together[::-1]
    assert together != drawn(model, patch_BPD, PROMPTS, KEYS, GREEDY)


def test_draws_differ_by_row_and_seed(model):
    """The same image and prompt in four rows: four answers, the same again for the same seed."""
    patch_BPD = normal(1, PATCHES, model.config.decoder.width).expand(4, -1, -1)
    prompts = [PROMPTS[1]] * 4
    once = drawn(model, patch_BPD, prompts, KEYS, WARM)
    assert len({tuple(tokens) for tokens in once}) == 4
    assert drawn(model, patch_BPD, prompts, KEYS, WARM) == once
    other = drawn(model, patch_BPD, prompts, KEYS, SamplingParams(temperature=1, top_p=0.9, seed=6))
    assert all(a != b for a, b in zip(once, other, strict=True))
    greedy = drawn(model, patch_BPD, prompts, KEYS, GREEDY)
    assert len({tuple(tokens) for tokens in greedy}) == 1
