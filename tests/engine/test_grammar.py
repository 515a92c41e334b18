"""Grammar-constrained answers are well-formed for any weights, limit and random numbers."""

import math
import re
from random import Random

import pytest
import torch
from torch import Tensor

from pgcli import parsing
from pgcli.checkpoints import weights
from pgcli.checkpoints.config import read_config
from pgcli.engine.grammar import START_STATE, Grammar, GrammarState
from pgcli.engine.sampler import GREEDY, OutputVocabulary, SamplingParams
from pgcli.engine.sequence import Sequence
from pgcli.engine.tokenizer import Tokenizer
from pgcli.errors import InvalidCheckpoint
from pgcli.model.paligemma import PaliGemma
from tests.support.sequences import grammar_rows, make_sequences, next_tokens, run_together
from tests.support.tiny import PATCHES, normal

STOP, OTHER_STOP = 1, 107
OBJECTS = ("red circle", "red", "cat", "é x", "green shape with a hole")
PROMPTS = [[2, 300, 108], [2, 301, 302, 303, 108], [2, 108], [2, 9, 108]]
KEYS = ["0 a", "1 b", "2 c", "3 d"]
LOCATION = re.compile(r"<loc(\d{4})>")


@pytest.fixture(scope="module")
def tokenizer(tiny) -> Tokenizer:
    return Tokenizer.from_folder(tiny)


@pytest.fixture(scope="module")
def model(tiny) -> PaliGemma:
    return weights.load_paligemma(tiny, read_config(tiny), dtype=torch.float64)


@pytest.fixture(scope="module")
def grammar(tokenizer) -> Grammar:
    return Grammar(tokenizer, [OBJECTS], {STOP})


def allowed_tokens(grammar: Grammar, state: GrammarState, left: int) -> list[int]:
    """The tokens that may follow in a row with this state and so many tokens left."""
    token_A, allowed_1A = grammar_rows(grammar, [(state, left)]).mask(slice(1))
    return token_A[allowed_1A[0]].tolist()


def output_of(tokenizer: Tokenizer, *stops: int) -> OutputVocabulary:
    return OutputVocabulary(tokenizer.size, tokenizer.id("<image>"), stops or (STOP,))


def run(
    model: PaliGemma,
    patch_BPD: Tensor,
    tokenizer: Tokenizer,
    most: int,
    sampling: SamplingParams,
    grammar: Grammar | None = None,
    rows: slice = slice(None),
) -> list[Sequence]:
    """The answers to PROMPTS, each with its own key, in one batch."""
    return run_together(
        model,
        patch_BPD,
        PROMPTS[rows],
        output_of(tokenizer),
        most,
        sampling=sampling,
        keys=KEYS[rows],
        grammar=grammar,
    )


def waiting(rows: int, most: int, sampling: SamplingParams) -> list[Sequence]:
    """Sequences without generated tokens."""
    return make_sequences([[2]] * rows, most, sampling)


def is_well_formed(tokenizer: Tokenizer, tokens: list[int], objects: tuple[str, ...]) -> bool:
    """Whether text, tokens and boxes are well-formed, by a check without the grammar's code."""
    if not tokens or tokens[-1] != STOP:
        return False
    words = tokens[:-1]
    pieces = tokenizer.decode(words, [1.0] * len(words))
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
    return whole and tokenizer.encode_answer(text) == words


# --- only well-formed answers are allowed


def test_every_path_of_the_grammar_is_well_formed_and_in_limit(tokenizer, grammar):
    lengths = set()
    for seed in range(400):
        rng = Random(seed)
        most = rng.randint(1, 60)
        tokens = walk(grammar, most, rng)
        assert is_well_formed(tokenizer, tokens, OBJECTS), tokens
        assert len(tokens) <= most
        lengths.add(len(tokens))
    assert len(lengths) > 20


def walk(grammar: Grammar, most: int, rng: Random) -> list[int]:
    """Allowed tokens drawn at random, locations as often as words, until a stop token."""
    tokens: list[int] = []
    state = START_STATE
    while True:
        allowed = allowed_tokens(grammar, state, most - len(tokens))
        ends = STOP in allowed and (len(allowed) == 1 or rng.random() < 0.1)
        token = STOP if ends else rng.choice([one for one in allowed if one != STOP])
        tokens.append(token)
        if token == STOP:
            return tokens
        state = grammar.advance(state, token)


# --- every well-formed answer is allowed


def allows(grammar: Grammar, tokens: list[int], left: int) -> bool:
    state = START_STATE
    for token in tokens:
        if token not in allowed_tokens(grammar, state, left):
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
def test_every_well_formed_answer_is_allowed(tokenizer, grammar, text):
    tokens = [*tokenizer.encode_answer(text), STOP]
    assert is_well_formed(tokenizer, tokens, OBJECTS)
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
def test_malformed_answers_are_not_allowed(tokenizer, grammar, text):
    assert not allows(grammar, [*tokenizer.encode_answer(text), STOP], 100)


def test_an_object_named_like_a_token_is_plain_text(tokenizer):
    name = "<loc0007><eos>"
    grammar = Grammar(tokenizer, [[name]], {STOP})
    tokens = [*tokenizer.encode_answer("<loc0001><loc0002><loc0003><loc0004>")]
    tokens += tokenizer.encode_text(f" {name}")
    assert allows(grammar, [*tokens, STOP], 100)
    boxes = parsing.boxes(tokenizer.decode(tokens, [1.0] * len(tokens)), width=9, height=9)
    assert [box.label for box in boxes] == [name]


# --- the limit


def longest_object(tokenizer: Tokenizer) -> int:
    """The number of tokens of the longest object, including the stop token."""
    return 4 + max(len(tokenizer.encode_text(f" {name}")) for name in OBJECTS) + 1


def test_an_object_begins_only_if_its_longest_label_fits(tokenizer):
    """With one token less than the longest object needs, only the empty answer is allowed."""
    grammar = Grammar(tokenizer, [OBJECTS], {STOP})
    fits = longest_object(tokenizer)
    assert allowed_tokens(grammar, START_STATE, fits - 1) == [STOP]
    assert len(allowed_tokens(grammar, START_STATE, fits)) == 1 + 1023
    assert grammar.truncated_by_limit(START_STATE, fits - 1)
    assert not grammar.truncated_by_limit(START_STATE, fits)


def test_an_answer_ended_by_the_limit_has_finish_length(model, tokenizer, grammar):
    """It has a stop token and only complete boxes; an answer that ends on its own has `stop`."""
    patch_BPD = normal(4, PATCHES, model.config.decoder.width)
    whole = longest_object(tokenizer)
    finishes = set()
    for most, temperature in ((1, 0), (3, 1), (13, 0.3), (19, 1e6), (40, 1), (61, 4), (200, 1)):
        sampling = SamplingParams(temperature, seed=most)
        for row in run(model, patch_BPD, tokenizer, most, sampling, grammar):
            assert is_well_formed(tokenizer, row.tokens, OBJECTS), row.tokens
            assert len(row.tokens) == len(row.logprobs) <= most
            assert row.has_stop_token
            last = most - len(row.tokens) + 1  # tokens left before the stop token
            another = 2 if len(row.tokens) > 1 else 0  # the separator's tokens
            fits = last >= another + whole
            assert row.finish == ("stop" if fits else "length")
            finishes.add(row.finish)
    assert finishes == {"stop", "length"}


# --- stop tokens


def test_any_of_several_stop_tokens_ends_an_answer(tokenizer):
    grammar = Grammar(tokenizer, [OBJECTS], {STOP, OTHER_STOP, tokenizer.size + 3})
    label = tokenizer.encode_answer("<loc0001><loc0002><loc0003><loc0004> cat")
    for tokens in ([], label):
        state = START_STATE
        for token in tokens:
            state = grammar.advance(state, token)
        allowed = set(allowed_tokens(grammar, state, 50))
        assert {STOP, OTHER_STOP} <= allowed
    assert max(grammar.stops) < tokenizer.size


def test_a_grammar_needs_a_checkpoint_with_a_stop_token(tokenizer):
    with pytest.raises(InvalidCheckpoint, match="eos_token_id"):
        Grammar(tokenizer, [OBJECTS], {tokenizer.size})


# --- log-probabilities and selection


def scores(tokenizer: Tokenizer, rows: int) -> Tensor:
    return normal(rows, tokenizer.size + 5, dtype=torch.float32) * 3


@pytest.mark.parametrize("sampling", [GREEDY, SamplingParams(2, top_p=0.9, top_k=40)])
def test_logprobs_are_computed_before_the_grammar_mask(tokenizer, grammar, sampling):
    output = output_of(tokenizer)
    logits_BV = scores(tokenizer, 6)
    own = logits_BV[:, : tokenizer.size].clone()
    own[:, output.image_token] = -torch.inf
    token_B, logprob_B = next_tokens(logits_BV, waiting(6, 50, sampling), output, grammar)
    assert all(token in (STOP, *tokenizer.locations) for token in token_B.tolist())
    expected = own.log_softmax(-1).gather(1, token_B[:, None])[:, 0]
    torch.testing.assert_close(logprob_B, expected, rtol=0, atol=1e-5)


def test_temperature_and_filters_apply_to_allowed_tokens(tokenizer, grammar):
    """The two best tokens are not locations; only the two best allowed tokens are sampled."""
    logits_V = torch.zeros(tokenizer.size)
    logits_V[400:402] = 50
    logits_V[tokenizer.locations[5]] = 10 + math.log(3)
    logits_V[STOP] = 10
    logits_BV = logits_V.expand(4000, -1).clone()
    for sampling in (SamplingParams(1, top_k=2), SamplingParams(1, top_p=0.9)):
        rows = waiting(4000, 50, sampling)
        token_B, _ = next_tokens(logits_BV, rows, output_of(tokenizer), grammar)
        assert set(token_B.tolist()) == {STOP, tokenizer.locations[5]}
        assert (token_B == STOP).float().mean().item() == pytest.approx(0.25, abs=0.03)


# --- independence of the batch


@pytest.mark.parametrize("sampling", [GREEDY, SamplingParams(1.5, top_p=0.95, seed=3)])
def test_answers_with_a_grammar_do_not_depend_on_the_batch(tiny, tokenizer, device, sampling):
    model = weights.load_paligemma(tiny, read_config(tiny), dtype=torch.float64, device=device)
    grammar = Grammar(tokenizer, [OBJECTS], {STOP})
    patch_BPD = normal(4, PATCHES, model.config.decoder.width).to(device)
    together = run(model, patch_BPD, tokenizer, 50, sampling, grammar)
    for n, row in enumerate(together):
        one = slice(n, n + 1)
        alone = run(model, patch_BPD[one], tokenizer, 50, sampling, grammar, one)
        assert alone[0].tokens == row.tokens
    order = slice(None, None, -1)
    backwards = run(model, patch_BPD.flip(0), tokenizer, 50, sampling, grammar, order)
    assert [row.tokens for row in backwards[::-1]] == [row.tokens for row in together]
    assert len({tuple(row.tokens) for row in together}) > 1
