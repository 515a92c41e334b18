"""Answers that may only be well-formed: no box malformed, whatever the weights, limit or draws."""

from __future__ import annotations

import math
import re
from pathlib import Path
from random import Random

import pytest
import torch
from torch import Tensor

from examples.demo_model.examples import eval_examples
from examples.demo_model.scenes import EVAL_SEEDS, Scene
from pgcli import parsing
from pgcli.checkpoints import weights
from pgcli.checkpoints.config import read_config
from pgcli.checkpoints.find import BUILTIN
from pgcli.engine.grammar import START, Grammar
from pgcli.engine.sampler import GREEDY, OutputVocabulary, SamplingParams
from pgcli.engine.sequence import Sequence
from pgcli.engine.tokenizer import Tokenizer
from pgcli.errors import InvalidCheckpoint
from pgcli.model.paligemma import PaliGemma
from tests.support.drawn import seen
from tests.support.random_weights import normal
from tests.support.sequences import make_sequences, next_tokens, run_together
from tests.support.tiny import PATCHES

STOP, OTHER_STOP = 1, 107
OBJECTS = ("red circle", "red", "cat", "é x", "green shape with a hole")
PROMPTS = [[2, 300, 108], [2, 301, 302, 303, 108], [2, 108], [2, 9, 108]]
KEYS = ["0 a", "1 b", "2 c", "3 d"]
LOCATION = re.compile(r"<loc(\d{4})>")


@pytest.fixture(scope="module")
def vocabulary(tiny: Path) -> Tokenizer:
    return Tokenizer.from_folder(tiny)


@pytest.fixture(scope="module")
def model(tiny: Path) -> PaliGemma:
    return weights.load(tiny, read_config(tiny), dtype=torch.float64)


@pytest.fixture(scope="module")
def grammar(vocabulary: Tokenizer) -> Grammar:
    return Grammar(vocabulary, OBJECTS, {STOP})


def output_of(vocabulary: Tokenizer, *stops: int) -> OutputVocabulary:
    return OutputVocabulary(vocabulary.size, vocabulary.id("<image>"), stops or (STOP,))


def run(
    model: PaliGemma,
    patch_BPD: Tensor,
    vocabulary: Tokenizer,
    most: int,
    sampling: SamplingParams,
    grammar: Grammar | None = None,
    rows: slice = slice(None),
) -> list[Sequence]:
    """Some of PROMPTS, each with its own key, answered together."""
    return run_together(
        model,
        patch_BPD,
        PROMPTS[rows],
        output_of(vocabulary),
        most,
        sampling=sampling,
        keys=KEYS[rows],
        grammar=grammar,
    )


def waiting(rows: int, most: int, sampling: SamplingParams) -> list[Sequence]:
    """Sequences that have no token yet."""
    return make_sequences([[2]] * rows, most, sampling)


def is_well_formed(vocabulary: Tokenizer, tokens: list[int], objects: tuple[str, ...]) -> bool:
    """Read with none of the grammar's code: by its text, by its tokens, and by its boxes."""
    if not tokens or tokens[-1] != STOP:
        return False
    words = tokens[:-1]
    pieces = vocabulary.decode(words, [1.0] * len(words))
    text = "".join(piece.text for piece in pieces)
    found = text.split(" ; ") if text else []
    for one in found:
        parts = LOCATION.split(one)
        if len(parts) != 9 or any(parts[0:8:2]) or parts[8].removeprefix(" ") not in objects:
            return False
        top, left, bottom, right = map(int, parts[1:8:2])
        if top >= bottom or left >= right:
            return False
    whole = len(parsing.boxes(pieces, width=640, height=480)) == len(found)
    return whole and vocabulary.encode_answer(text) == words


# --- nothing malformed can be said


@pytest.mark.parametrize("temperature", [0, 0.3, 1, 4, 1e6])
def test_random_weights_say_nothing_malformed_at_any_limit(
    model: PaliGemma, vocabulary: Tokenizer, grammar: Grammar, temperature: float
) -> None:
    """Without the grammar hardly an answer of theirs is well-formed."""
    patch_BPD = normal(4, PATCHES, model.config.decoder.width)
    objects_said = 0
    for most in (1, 2, 7, 9, 11, 13, 18, 26, 33, 61):
        sampling = SamplingParams(temperature, seed=most)
        rows = run(model, patch_BPD, vocabulary, most, sampling, grammar)
        for row in rows:
            assert is_well_formed(vocabulary, row.tokens, OBJECTS), row.tokens
            assert len(row.tokens) == len(row.logprobs) <= most
            objects_said += sum(token in vocabulary.locations for token in row.tokens) // 4
    free = run(model, patch_BPD, vocabulary, most, sampling)
    assert not all(is_well_formed(vocabulary, row.tokens, OBJECTS) for row in free)
    assert objects_said > 10, "answers that are all empty prove nothing"


def test_every_walk_through_the_grammar_is_a_well_formed_answer_within_its_limit(
    vocabulary: Tokenizer, grammar: Grammar
) -> None:
    lengths = set()
    for seed in range(400):
        rng = Random(seed)
        most = rng.randint(1, 60)
        tokens = walk(grammar, most, rng)
        assert is_well_formed(vocabulary, tokens, OBJECTS), tokens
        assert len(tokens) <= most
        lengths.add(len(tokens))
    assert len(lengths) > 20


def walk(grammar: Grammar, most: int, rng: Random) -> list[int]:
    """Tokens drawn from what is allowed, locations and words alike, until a stop token."""
    tokens: list[int] = []
    state = START
    while True:
        allowed = grammar.token_A[grammar.allowed(state, most - len(tokens))].tolist()
        ends = STOP in allowed and (len(allowed) == 1 or rng.random() < 0.1)
        token = STOP if ends else rng.choice([one for one in allowed if one != STOP])
        tokens.append(token)
        if token == STOP:
            return tokens
        state = grammar.advance(state, token)


# --- everything well-formed can be said


def allows(grammar: Grammar, tokens: list[int], left: int) -> bool:
    state = START
    for token in tokens:
        if token not in grammar.token_A[grammar.allowed(state, left)].tolist():
            return False
        left -= 1
        if token != STOP:
            state = grammar.advance(state, token)
    return True


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<loc0000><loc0000><loc1023><loc1023> red",
        "<loc0000><loc1022><loc0001><loc1023> red circle",
        "<loc1022><loc0000><loc1023><loc0001> é x ; <loc0005><loc0900><loc0007><loc0999> é x",
        "<loc0001><loc0002><loc0003><loc0004> cat ; <loc0001><loc0002><loc0003><loc0004> red ; "
        "<loc0100><loc0001><loc0200><loc0900> green shape with a hole",
    ],
)
def test_whatever_is_well_formed_may_be_said(
    vocabulary: Tokenizer, grammar: Grammar, text: str
) -> None:
    tokens = [*vocabulary.encode_answer(text), STOP]
    assert is_well_formed(vocabulary, tokens, OBJECTS)
    assert allows(grammar, tokens, 100)


@pytest.mark.parametrize(
    "text",
    [
        "red",
        " red",
        "<loc0001><loc0002><loc0003><loc0004>",
        "<loc0001><loc0002><loc0003> red",
        "<loc0001><loc0002><loc0003><loc0004><loc0005> red",
        "<loc0003><loc0002><loc0003><loc0004> red",
        "<loc0003><loc0002><loc0001><loc0004> red",
        "<loc0001><loc0004><loc0003><loc0004> red",
        "<loc1023><loc0004><loc0003><loc0004> red",
        "<loc0001><loc1023><loc0003><loc0004> red",
        "<loc0001><loc0002><loc0003><loc0004> blue",
        "<loc0001><loc0002><loc0003><loc0004> circle",
        "<loc0001><loc0002><loc0003><loc0004> red red",
        "<loc0001><loc0002><loc0003><loc0004> green shape",
        "<loc0001><loc0002><loc0003><loc0004> red ; ",
        "<loc0001><loc0002><loc0003><loc0004> red ;",
        "<loc0001><loc0002><loc0003><loc0004> red<loc0001><loc0002><loc0003><loc0004> red",
        "<loc0001><loc0002><loc0003><loc0004> red<seg001>",
    ],
)
def test_nothing_else_may_be_said(vocabulary: Tokenizer, grammar: Grammar, text: str) -> None:
    assert not allows(grammar, [*vocabulary.encode_answer(text), STOP], 100)


def test_a_name_that_spells_a_token_is_a_label_of_plain_text(vocabulary: Tokenizer) -> None:
    name = "<loc0007><eos>"
    grammar = Grammar(vocabulary, [name], {STOP})
    tokens = [*vocabulary.encode_answer("<loc0001><loc0002><loc0003><loc0004>")]
    tokens += vocabulary.encode_text(f" {name}")
    assert allows(grammar, [*tokens, STOP], 100)
    boxes = parsing.boxes(vocabulary.decode(tokens, [1.0] * len(tokens)), width=9, height=9)
    assert [box.label for box in boxes] == [name]


# --- the limit


def longest_object(vocabulary: Tokenizer) -> int:
    """Its tokens, with the stop token after it."""
    return 4 + max(len(vocabulary.encode_text(f" {name}")) for name in OBJECTS) + 1


def test_an_object_is_begun_only_where_it_fits_with_any_label(vocabulary: Tokenizer) -> None:
    """Four corners, the longest label, the stop token: one less leaves the empty answer only."""
    grammar = Grammar(vocabulary, OBJECTS, {STOP})
    fits = longest_object(vocabulary)
    assert grammar.token_A[grammar.allowed(START, fits - 1)].tolist() == [STOP]
    assert grammar.allowed(START, fits).sum() == 1 + 1023
    assert grammar.truncated_by_limit(START, fits - 1)
    assert not grammar.truncated_by_limit(START, fits)


def test_the_limit_has_no_say_in_what_a_thing_is_called(
    vocabulary: Tokenizer, grammar: Grammar
) -> None:
    """Wherever an object may be begun, each of the labels may end it."""
    corners = vocabulary.encode_answer("<loc0001><loc0002><loc0003><loc0004>")
    before = vocabulary.encode_answer("<loc0001><loc0002><loc0003><loc0004> cat ; ")
    for name in OBJECTS:
        whole = [*corners, *vocabulary.encode_text(f" {name}"), STOP]
        for most in range(1, 60):
            begins = allows(grammar, corners[:1], most)
            assert allows(grammar, whole, most) == begins
            begins = allows(grammar, [*before, *corners[:1]], most)
            assert allows(grammar, [*before, *whole], most) == begins


def test_each_row_is_bound_by_its_own_tokens(vocabulary: Tokenizer, grammar: Grammar) -> None:
    """Rows side by side of which one has just begun, one must end, one is within a box."""
    rows = waiting(3, 20, GREEDY)
    rows[1].tokens = [STOP] * 18
    rows[2].tokens = vocabulary.encode_answer("<loc0009><loc0007>")
    for token in rows[2].tokens:
        rows[2].state = grammar.advance(rows[2].state, token)
    logits_BV = torch.zeros(3, vocabulary.size)
    logits_BV[:, vocabulary.locations[8]] = 9
    logits_BV[:, vocabulary.locations[12]] = 8
    token_B, _ = next_tokens(logits_BV, rows, output_of(vocabulary), grammar)
    assert token_B.tolist() == [vocabulary.locations[8], STOP, vocabulary.locations[12]]


def test_an_answer_that_the_limit_ended_says_so(
    model: PaliGemma, vocabulary: Tokenizer, grammar: Grammar
) -> None:
    """It has its stop token all the same, and only whole boxes; a free end is `stop`."""
    patch_BPD = normal(4, PATCHES, model.config.decoder.width)
    whole = longest_object(vocabulary)
    finishes = set()
    for most in (3, 19, 40, 200):
        sampling = SamplingParams(1, seed=most)
        for row in run(model, patch_BPD, vocabulary, most, sampling, grammar):
            assert row.stopped
            last = most - len(row.tokens) + 1  # tokens left before the stop token
            another = 2 if len(row.tokens) > 1 else 0  # tokens of a separator
            fits = last >= another + whole
            assert row.finish == ("stop" if fits else "length")
            finishes.add(row.finish)
    assert finishes == {"stop", "length"}


# --- stop tokens


def test_any_of_several_stop_tokens_ends_an_answer(vocabulary: Tokenizer) -> None:
    grammar = Grammar(vocabulary, OBJECTS, {STOP, OTHER_STOP, vocabulary.size + 3})
    label = vocabulary.encode_answer("<loc0001><loc0002><loc0003><loc0004> cat")
    for tokens in ([], label):
        state = START
        for token in tokens:
            state = grammar.advance(state, token)
        allowed = set(grammar.token_A[grammar.allowed(state, 50)].tolist())
        assert {STOP, OTHER_STOP} <= allowed
    assert max(grammar.token_A.tolist()) < vocabulary.size


def test_a_checkpoint_without_a_stop_token_of_its_own_is_refused(vocabulary: Tokenizer) -> None:
    with pytest.raises(InvalidCheckpoint, match="eos_token_id"):
        Grammar(vocabulary, OBJECTS, {vocabulary.size})


# --- what the model thought of it


def scores(vocabulary: Tokenizer, rows: int) -> Tensor:
    return normal(rows, vocabulary.size + 5, dtype=torch.float32) * 3


@pytest.mark.parametrize("sampling", [GREEDY, SamplingParams(2, top_p=0.9, top_k=40)])
def test_logprobs_are_the_models_own_before_the_grammar(
    vocabulary: Tokenizer, grammar: Grammar, sampling: SamplingParams
) -> None:
    output = output_of(vocabulary)
    logits_BV = scores(vocabulary, 6)
    own = logits_BV[:, : vocabulary.size].clone()
    own[:, output.image_token] = -torch.inf
    token_B, logprob_B = next_tokens(logits_BV, waiting(6, 50, sampling), output, grammar)
    assert all(token in (STOP, *vocabulary.locations) for token in token_B.tolist())
    expected = own.log_softmax(-1).gather(1, token_B[:, None])[:, 0]
    torch.testing.assert_close(logprob_B, expected, rtol=0, atol=1e-5)


def test_greedy_takes_the_best_of_what_is_allowed(vocabulary: Tokenizer, grammar: Grammar) -> None:
    logits_BV = scores(vocabulary, 20)
    first, last = vocabulary.locations[0], vocabulary.locations[-1]
    expected = []
    for logits_V in logits_BV:
        best = max([STOP, *range(first, last)], key=logits_V.tolist().__getitem__)
        expected.append(best)
    rows = waiting(20, 50, GREEDY)
    assert next_tokens(logits_BV, rows, output_of(vocabulary), grammar)[0].tolist() == expected


def test_temperature_and_filters_work_on_what_is_allowed(
    vocabulary: Tokenizer, grammar: Grammar
) -> None:
    """The two best of all are no locations; the two best that may be said share all draws."""
    logits_V = torch.zeros(vocabulary.size)
    logits_V[400:402] = 50
    logits_V[vocabulary.locations[5]] = 10 + math.log(3)
    logits_V[STOP] = 10
    logits_BV = logits_V.expand(4000, -1).clone()
    for sampling in (SamplingParams(1, top_k=2), SamplingParams(1, top_p=0.9)):
        rows = waiting(4000, 50, sampling)
        token_B, _ = next_tokens(logits_BV, rows, output_of(vocabulary), grammar)
        assert set(token_B.tolist()) == {STOP, vocabulary.locations[5]}
        assert (token_B == STOP).float().mean().item() == pytest.approx(0.25, abs=0.03)


# --- whose answer it is


@pytest.mark.parametrize("sampling", [GREEDY, SamplingParams(1.5, top_p=0.95, seed=3)])
def test_neighbours_are_invisible_with_the_grammar_too(
    tiny: Path, vocabulary: Tokenizer, device: str, sampling: SamplingParams
) -> None:
    model = weights.load(tiny, read_config(tiny), dtype=torch.float64, device=device)
    grammar = Grammar(vocabulary, OBJECTS, {STOP}, device=device)
    patch_BPD = normal(4, PATCHES, model.config.decoder.width).to(device)
    together = run(model, patch_BPD, vocabulary, 50, sampling, grammar)
    for n, row in enumerate(together):
        one = slice(n, n + 1)
        alone = run(model, patch_BPD[one], vocabulary, 50, sampling, grammar, one)
        assert alone[0].tokens == row.tokens
    order = slice(None, None, -1)
    backwards = run(model, patch_BPD.flip(0), vocabulary, 50, sampling, grammar, order)
    assert [row.tokens for row in backwards[::-1]] == [row.tokens for row in together]
    assert len({tuple(row.tokens) for row in together}) > 1


def test_what_is_allowed_is_worked_out_once_per_state(grammar: Grammar) -> None:
    state = grammar.advance(grammar.advance(START, 770), 780)
    assert grammar.allowed(state, 30) is grammar.allowed(state, 17)


# --- the built-in model


@pytest.fixture(scope="module")
def demo() -> PaliGemma:
    return weights.load(BUILTIN, read_config(BUILTIN), dtype=torch.float32)


@torch.inference_mode()
@pytest.mark.slow
def test_the_built_in_models_answers_are_its_free_ones_where_those_are_well_formed(
    demo: PaliGemma,
) -> None:
    vocabulary = Tokenizer.from_folder(BUILTIN)
    output = output_of(vocabulary)
    compared = 0
    for seed in EVAL_SEEDS[:20]:
        scene = Scene.from_seed(seed)
        patch_BPD = seen(demo, scene)
        for prefix in (one.prefix for one in eval_examples(scene) if one.kind == "detect"):
            objects = tuple(prefix.removeprefix("detect ").split(" ; "))
            grammar = Grammar(vocabulary, objects, {STOP})
            prompts = [vocabulary.encode_prompt(prefix)]
            (free,) = run_together(demo, patch_BPD, prompts, output, 64)
            (bound,) = run_together(demo, patch_BPD, prompts, output, 64, grammar=grammar)
            assert is_well_formed(vocabulary, bound.tokens, objects)
            if is_well_formed(vocabulary, free.tokens, objects):
                assert bound.tokens == free.tokens
                assert bound.logprobs == free.logprobs
                assert bound.finish == free.finish == "stop"
                compared += len(free.tokens) > 1
    assert compared > 20
