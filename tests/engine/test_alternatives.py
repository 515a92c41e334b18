"""Sampled answers beside the greedy one: one prefill, and no dependence on the batch."""

import math
from dataclasses import replace

import pytest

from pgcli import tasks
from pgcli.engine.engine import InferenceEngine
from pgcli.engine.sampler import GREEDY, SamplingParams
from pgcli.records import Answer
from pgcli.tasks import Question
from tests.support.limited_memory import LimitedMemory, fresh, stream

PLAIN = Question("ask", None, 7)
QUESTION = replace(PLAIN, alternatives=3, token_logprobs=True)
STRICT = replace(
    tasks.detect(["red circle"], strict=True, max_new_tokens=14),
    alternatives=2,
    token_logprobs=True,
)


def rows(
    loaded: InferenceEngine,
    question: Question = QUESTION,
    sampling: SamplingParams = GREEDY,
    *,
    batch_size: int = 8,
    images: int = 2,
) -> list[Answer]:
    found = fresh(loaded, batch_size).ask(stream(images), question, sampling)
    return [row for _, row in sorted(found, key=lambda one: one[0])]


def texts(answers: list[Answer]) -> list[list[str]]:
    return [[one.text for one in answer.alternatives or ()] for answer in answers]


@pytest.mark.parametrize("question", [QUESTION, STRICT], ids=["free", "strict"])
def test_alternatives_do_not_depend_on_the_batch(loaded, question):
    """In batches of one row every alternative has a prefill of its own."""
    alone, together = (rows(loaded, question, batch_size=size) for size in (1, 8))
    assert texts(alone) == texts(together)
    for one, other in zip(alone, together, strict=True):
        pairs = zip(one.alternatives or (), other.alternatives or (), strict=True)
        assert all(math.isclose(a.logprob, b.logprob, rel_tol=1e-4) for a, b in pairs)


def test_answer_is_the_greedy_one_whatever_is_sampled(loaded):
    plain = rows(loaded, PLAIN)
    for sampling in (GREEDY, SamplingParams(temperature=2.0, seed=5)):
        found = rows(loaded, QUESTION, sampling)
        assert [row.answer for row in found] == [row.answer for row in plain]
        assert [row.tokens for row in found] == [row.tokens for row in plain]


def test_a_prompt_is_prefilled_once_for_all_its_answers(loaded, monkeypatch):
    prefilled = LimitedMemory(monkeypatch, "prefill", 99)
    encoded = LimitedMemory(monkeypatch, "encode", 99)
    found = rows(loaded, batch_size=24)
    assert sum(prefilled.asked) == len(found) == 6
    assert sum(encoded.asked) == 2
    assert {row.batch for row in found} == {6}


def test_logprobs_are_sums_and_those_of_tokens(loaded):
    for row in rows(loaded, sampling=SamplingParams(top_k=1)):
        logprobs = [one.logprob for one in row.token_logprobs or ()]
        assert len(logprobs) == row.tokens
        assert row.logprob == pytest.approx(sum(logprobs) / len(logprobs))
        assert all(one.logprob == pytest.approx(sum(logprobs)) for one in row.alternatives or ())


def test_rows_have_neither_unless_asked(loaded):
    assert all(row.alternatives is row.token_logprobs is None for row in rows(loaded, PLAIN))
