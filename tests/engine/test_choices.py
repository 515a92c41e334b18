"""Candidates get the same scores as in transformers, independently of other candidates and rows."""

import json
from collections import abc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from pgcli.checkpoints import weights
from pgcli.checkpoints.config import parse_config, read_config
from pgcli.checkpoints.find import BUILTIN
from pgcli.engine import choices as module
from pgcli.engine import model_runner
from pgcli.engine.choices import ChoiceOutput, make_candidates
from pgcli.engine.input_processor import InputProcessor
from pgcli.engine.model_runner import generate
from pgcli.engine.sampler import GREEDY, OutputVocabulary
from pgcli.engine.sequence import Candidate, Sequence
from pgcli.engine.tokenizer import Tokenizer
from pgcli.model.paligemma import PaliGemma
from pgcli.records import DecodedImage, Item
from pgcli.tasks import Question
from tests.support.sequences import Clock
from tests.support.tiny import PATCHES, RESOLUTION, normal

STOP = 1
PROMPTS = [[2, 300, 108], [2, 301, 302, 303, 304, 305, 108], [2, 108], [2, 9, 108]]


def candidate(*ids: int) -> Candidate:
    return Candidate(" ".join(map(str, ids)), ids)


#: Different numbers and lengths of candidates with common prefixes; one is as long as the window.
CHOICES = [
    [candidate(400), candidate(401)],
    [
        candidate(400, 402),
        candidate(400),
        candidate(400, 402, 403),
        candidate(500, 501, 502, 503, 504),
    ],
    [candidate(310, 311, 312, 313, 314, 315, 316, 317, 318)],
    [candidate(n, n + 1) for n in range(350, 360)],
]


def output_of(model: PaliGemma) -> OutputVocabulary:
    config = model.config
    size = config.decoder.vocab_size - 2
    return OutputVocabulary(size, config.image_token_id - 3, config.stop_tokens)


def scored_sequences(
    model: PaliGemma,
    patch_BPD: Tensor,
    prompts: abc.Sequence[abc.Sequence[int]],
    choices: abc.Sequence[abc.Sequence[Candidate]],
    vocabulary: OutputVocabulary,
) -> list[Sequence]:
    sequences = [
        Sequence(row, "", tuple(ids), 1, candidates=tuple(some))
        for row, (ids, some) in enumerate(zip(prompts, choices, strict=True))
    ]
    return generate(model, patch_BPD, sequences, vocabulary)


def score(*given: Any) -> list[ChoiceOutput]:
    return [
        ChoiceOutput(one.candidates, one.candidate_logprobs) for one in scored_sequences(*given)
    ]


def sums_of(rows: abc.Sequence[ChoiceOutput]) -> list[list[float]]:
    return [list(row.logprobs) for row in rows]


def scored(
    model: PaliGemma, patch_BPD: Tensor, order: abc.Sequence[int] = range(4)
) -> list[ChoiceOutput]:
    """The rows with these numbers, in this order."""
    prompts, some = [PROMPTS[n] for n in order], [CHOICES[n] for n in order]
    return score(model, patch_BPD[list(order)], prompts, some, output_of(model))


@pytest.fixture(params=["tiny", "tiny2"])
def folder(request) -> Path:
    """A checkpoint of either generation; the second has a window shorter than any prefix."""
    return Path(request.getfixturevalue(request.param))


@pytest.fixture
def model(folder) -> PaliGemma:
    return weights.load_paligemma(folder, read_config(folder), dtype=torch.float64)


@pytest.fixture
def patch_BPD(model) -> Tensor:
    return normal(4, PATCHES, model.config.decoder.width)


# --- parity with transformers


def their_sum(
    theirs: transformers.PaliGemmaForConditionalGeneration,
    pixels_CRR: Tensor,
    prompt: abc.Sequence[int],
    answer: abc.Sequence[int],
    vocabulary: OutputVocabulary,
) -> float:
    """transformers' log-likelihood of a single answer, with teacher forcing."""
    ids = [*[theirs.config.image_token_index] * PATCHES, *prompt, *answer]
    prefix = len(ids) - len(answer)
    types = [0] * prefix + [1] * len(answer)
    logits = theirs(
        input_ids=torch.tensor([ids]),
        token_type_ids=torch.tensor([types]),
        attention_mask=torch.ones(1, len(ids), dtype=torch.long),
        pixel_values=pixels_CRR[None],
    ).logits[0, prefix - 1 : -1, : vocabulary.size]
    logits[:, vocabulary.image_token] = -torch.inf
    own = logits.float().log_softmax(-1)
    return float(own[range(len(answer)), list(answer)].sum())


@torch.inference_mode()
def test_each_candidate_scores_as_alone_in_transformers(folder, device):
    ours = weights.load_paligemma(folder, read_config(folder), dtype=torch.float32, device=device)
    theirs = transformers.PaliGemmaForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32
    ).eval()
    pixels_BCRR = normal(4, 3, RESOLUTION, RESOLUTION, dtype=torch.float32).clamp(-1, 1)
    vocabulary = output_of(ours)
    rows = score(ours, ours.encode(pixels_BCRR.to(device)), PROMPTS, CHOICES, vocabulary)
    for row, pixels_CRR, prompt, some in zip(rows, pixels_BCRR, PROMPTS, CHOICES, strict=True):
        expected = [
            their_sum(theirs, pixels_CRR, prompt, [*one.ids, STOP], vocabulary) for one in some
        ]
        assert row.logprobs == pytest.approx(expected, abs=1e-4, rel=0)


@pytest.mark.parametrize("tokens", [1, 2, 5, 11])
def test_candidates_in_several_passes_score_the_same(model, patch_BPD, monkeypatch, tokens):
    """For several limits of tokens per pass and of logits at a time."""
    expected = sums_of(scored(model, patch_BPD))
    monkeypatch.setattr(module, "TOKENS_PER_PASS", tokens)
    monkeypatch.setattr(module, "LOGITS_AT_ONCE", tokens)
    for sums, known in zip(sums_of(scored(model, patch_BPD)), expected, strict=True):
        assert sums == pytest.approx(known, abs=1e-5)


# --- ChoiceOutput


def test_the_first_of_equal_candidates_is_chosen():
    row = ChoiceOutput([candidate(n) for n in range(4)], [-3.0, -2.0, -2.0, -2.0])
    assert row.best == 1


def test_logprob_is_the_mean_over_the_best_candidates_tokens():
    row = ChoiceOutput([candidate(3), candidate(4, 5, 6)], [-9.0, -8.0])
    assert row.logprob == -2


# --- candidates as tokens


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(BUILTIN)


def test_candidates_are_encoded_as_plain_text(tokenizer):
    texts = ["  yes ", "<loc0001>", "<eos>", "two words"]
    found = make_candidates(texts, tokenizer)
    assert [one.text for one in found] == ["yes", "<loc0001>", "<eos>", "two words"]
    special = {*tokenizer.locations, tokenizer.id("<eos>")}
    assert not any(special & set(one.ids) for one in found)
    assert found[0].ids == tuple(tokenizer.encode_answer("yes"))


# --- other cases


def test_the_time_of_a_pass_is_divided_over_its_rows(model, patch_BPD, monkeypatch):
    """The longest row needs three passes, the others one; a pass takes ten milliseconds."""
    monkeypatch.setattr(model_runner, "Stopwatch", Clock)
    monkeypatch.setattr(module, "TOKENS_PER_PASS", 9)
    rows = scored_sequences(model, patch_BPD, PROMPTS, CHOICES, output_of(model))
    assert [row.prefill_ms for row in rows] == [2.5] * 4
    assert [row.decode_ms for row in rows] == [2.5, 2.5 + 5, 2.5, 2.5 + 5 + 10]


def test_a_prompt_leaves_slots_for_the_longest_candidate(tokenizer):
    config = parse_config(json.loads((BUILTIN / "config.json").read_text()))
    item = Item(0, "a", "a", prompts=("what is this?", "what?"), choices=("no", "a red circle"))
    image = DecodedImage(item, 9, 9, None, 0.0)
    needed = config.image_tokens + len(tokenizer.encode_prompt("what is this?"))
    needed += len(tokenizer.encode_answer("a red circle")) + 1
    for positions, refusals in ((needed, 0), (needed - 1, 1)):
        decoder = replace(config.decoder, max_positions=positions)
        processor = InputProcessor(
            tokenizer,
            replace(config, decoder=decoder),
            GREEDY,
            Question("ask", None, 64),
            model="m",
        )
        requests, refused = processor.process(5, image)
        assert [index for index, _ in refused] == [5][:refusals]
        assert [(one.row_index, one.image_uses) for one in requests] == (
            [(6, 1)] if refusals else [(5, 2), (6, 2)]
        )
