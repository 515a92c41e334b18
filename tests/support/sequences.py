"""Sequences without an engine: prompts as ids, generated to their ends in one batch."""

import random
from collections import abc

import torch
from torch import Tensor

from pgcli.engine.grammar import Grammar, GrammarRows, GrammarState
from pgcli.engine.model_runner import generate
from pgcli.engine.sampler import (
    GREEDY,
    OutputVocabulary,
    SamplingParams,
    select_tokens,
)
from pgcli.engine.sequence import Sequence
from pgcli.model.paligemma import PaliGemma

NO_TOKEN = 10**9


def vocabulary_of(
    model: PaliGemma, *stop_tokens: int, image_token: int = NO_TOKEN
) -> OutputVocabulary:
    """All tokens of the model, with these end tokens."""
    return OutputVocabulary(model.config.decoder.vocab_size, image_token, stop_tokens)


def make_sequences(
    prompts: abc.Sequence[abc.Sequence[int]],
    max_new_tokens: int,
    sampling: SamplingParams = GREEDY,
    keys: abc.Sequence[str] | None = None,
) -> list[Sequence]:
    """A sequence of each prompt's ids; without `keys`, the key is its index."""
    names = keys or [str(row) for row in range(len(prompts))]
    return [
        Sequence(row, "", tuple(ids), max_new_tokens, sampling, key=name)
        for row, (ids, name) in enumerate(zip(prompts, names, strict=True))
    ]


def run_together(
    model: PaliGemma,
    patch_BPD: Tensor,
    prompts: abc.Sequence[abc.Sequence[int]],
    vocabulary: OutputVocabulary,
    max_new_tokens: int,
    *,
    sampling: SamplingParams = GREEDY,
    keys: abc.Sequence[str] | None = None,
    grammar: Grammar | None = None,
) -> list[Sequence]:
    """The finished sequences of one batch."""
    made = make_sequences(prompts, max_new_tokens, sampling, keys)
    return generate(model, patch_BPD, made, vocabulary, grammar)


def grammar_rows(grammar: Grammar, states: abc.Sequence[tuple[GrammarState, int]]) -> GrammarRows:
    """Rows in these states, each with its number of remaining tokens."""
    rows = GrammarRows(grammar, max_rows=len(states), device=torch.device("cpu"))
    rows.insert(slice(None), states)
    return rows


def next_tokens(
    logits_BV: Tensor,
    sequences: abc.Sequence[Sequence],
    vocabulary: OutputVocabulary,
    grammar: Grammar | None = None,
) -> tuple[Tensor, Tensor]:
    """The next token of each sequence, and its log-probability."""
    draw_B = torch.tensor([one.draws()[len(one.tokens)] for one in sequences])
    mask = None
    if grammar is not None:
        states = [(one.state, one.tokens_left) for one in sequences]
        mask = grammar_rows(grammar, states).mask(slice(None))
    return select_tokens(logits_BV, sequences[0].sampling, vocabulary, draw_B, mask)[:2]


def prompts_of_many_lengths(count: int) -> list[list[int]]:
    """Prompts of 2 to 12 tokens, all different."""
    draws = random.Random(3)
    return [
        [2, *(draws.randrange(300, 700) for _ in range(draws.randrange(0, 11))), 108]
        for _ in range(count)
    ]
