"""Out of memory: smaller batches give every row exactly once, with the same answer."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from pgcli import tasks
from pgcli.engine import engine as engines
from pgcli.engine import memory as memory_module
from pgcli.engine import model_runner, output, sampler
from pgcli.engine.image_cache import ImageFeatureCache
from pgcli.engine.memory import (
    MAX_LOST_AT_START,
    is_oom,
)
from pgcli.engine.model_runner import InFlightScore, ModelRunner
from pgcli.engine.sampler import GREEDY, SamplingParams
from pgcli.errors import NoUsableDevice
from pgcli.model import kv_cache
from pgcli.model.kv_cache import KVCache
from pgcli.records import Answer
from pgcli.tasks import Question
from tests.support.sequences import OOM_ERRORS, PROMPTS, LimitedMemory, fresh, stream
from tests.support.tiny import RESOLUTION

TOKENS = 7
SAMPLED = SamplingParams(temperature=1.5, top_k=20, seed=4)
OTHER_ERRORS = (
    "CUDA error: an illegal memory access was encountered",
    "CUDA error: device-side assert triggered",
    "shapes do not match",
)


@pytest.fixture(autouse=True)
def small_heap(monkeypatch) -> None:
    """Skip garbage collection after a failure, which takes 0.1 s with all libraries loaded."""
    monkeypatch.setattr("pgcli.engine.memory.gc.collect", lambda: 0)


QUESTIONS = {
    "free": Question("ask", None, TOKENS),
    "strict": tasks.detect(["red circle", "blue square"], strict=True, max_new_tokens=14),
}


def comparable(found: Iterable[tuple[int, Answer]]) -> list[tuple[int, Answer]]:
    """The rows by index, without fields that may depend on the batch."""
    return sorted(
        ((row_index, without_batch(row)) for row_index, row in found), key=lambda one: one[0]
    )


def without_batch(row: Answer) -> Answer:
    """The row without fields that may depend on the batch."""
    zeros = dict.fromkeys(("vision_ms", "prefill_ms", "decode_ms", "batch", "logprob"), 0)
    return replace(row, **zeros)


def assert_same_answers(
    mine: Iterable[tuple[int, Answer]], others: Iterable[tuple[int, Answer]]
) -> None:
    """Assert that both have the same rows, each once; scores and confidences are not compared."""
    mine, others = comparable(mine), comparable(others)
    assert [row_index for row_index, _ in mine] == [row_index for row_index, _ in others]
    for (_, one), (_, other) in zip(mine, others, strict=True):
        assert replace(one, boxes=()) == replace(other, boxes=())
        assert [replace(box, score=0, confidence=0) for box in one.boxes] == [
            replace(box, score=0, confidence=0) for box in other.boxes
        ]


# --- answers do not depend on OOM errors


@pytest.fixture(scope="module")
def expected_answers(loaded) -> dict[tuple[str, SamplingParams], list[tuple[int, Answer]]]:
    found = {
        (name, sampling): comparable(fresh(loaded).ask(stream(), question, sampling))
        for name, question in QUESTIONS.items()
        for sampling in (GREEDY, SAMPLED)
    }
    lengths = {row.tokens for rows in found.values() for _, row in rows}
    assert len(lengths) > 4, "rows end at the same time"
    return found


@pytest.mark.parametrize("size", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 5))])
@pytest.mark.parametrize("site", ["encode", "prefill", "insert", "decode"])
def test_oom_loses_doubles_or_changes_no_row(loaded, expected_answers, monkeypatch, site, size):
    for (name, sampling), expected in expected_answers.items():
        with monkeypatch.context() as patch:
            memory = LimitedMemory(patch, site, size)
            assert_same_answers(fresh(loaded).ask(stream(), QUESTIONS[name], sampling), expected)
            assert memory.failures or size > 2


#: Calls that leave keys, random numbers or tokens behind: their owner, and how to count their rows.
AMID_A_PASS: dict[str, tuple[Any, Callable[..., int]]] = {
    "write": (KVCache, lambda cache, layer, key, value: len(key)),
    "select_tokens": (sampler, lambda logits_BV, *_: len(logits_BV)),
    "sample": (sampler, lambda logits_BV, *_: len(logits_BV)),
    "_read_oldest": (ModelRunner, lambda runner: len(runner.rows)),
}


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("name", AMID_A_PASS)
def test_oom_during_a_pass_changes_no_row(loaded, expected_answers, monkeypatch, name, depth):
    """In groups that join running rows, also if tokens are read a step late."""
    monkeypatch.setitem(model_runner.ASYNC_DEPTH, "cpu", depth)
    monkeypatch.setitem(memory_module.GROUP_TOKENS, "cpu", (3 * (16 + memory_module.USUAL_PROMPT),))
    owner, count_rows = AMID_A_PASS[name]
    real, calls = getattr(owner, name), []

    def failing(*given: Any) -> Any:
        calls.append(name)
        has_rows = count_rows(*given) > 1
        if has_rows and len(calls) % 6 == 2:
            raise MemoryError
        done = real(*given)
        if has_rows and len(calls) % 6 == 5:
            raise MemoryError
        return done

    monkeypatch.setattr(owner, name, failing)
    found = fresh(loaded).ask(stream(), QUESTIONS["free"], SAMPLED)
    assert_same_answers(found, expected_answers["free", SAMPLED])
    assert len(calls) > 8


def test_oom_while_rows_are_freed_doubles_no_token(loaded, monkeypatch):
    """A group joins: the step that is read meanwhile has given its tokens to continuing rows."""
    images, sampling = stream(14), SamplingParams(temperature=1.5, top_k=20, seed=2)
    expected = list(fresh(loaded).ask(images, QUESTIONS["free"], sampling))
    monkeypatch.setitem(model_runner.ASYNC_DEPTH, "cpu", 1)
    monkeypatch.setitem(memory_module.GROUP_TOKENS, "cpu", (3 * (16 + memory_module.USUAL_PROMPT),))
    run, remove = ModelRunner._run, KVCache.remove
    batches: list[Any] = []
    failures: list[int] = []

    def running(runner: ModelRunner, batch: Any) -> Any:
        batches.append(batch)
        return run(runner, batch)

    def removing(cache: KVCache, rows: Any, *others: Any) -> Any:
        joining = len(batches[-1].sequences) if batches[-1].kind == "prefill" else cache.rows
        if cache.rows - len(rows) > joining and not failures:  # earlier rows are still running
            failures.append(len(rows))
            raise MemoryError
        return remove(cache, rows, *others)

    monkeypatch.setattr(ModelRunner, "_run", running)
    monkeypatch.setattr(KVCache, "remove", removing)
    found = fresh(loaded).ask(images, QUESTIONS["free"], sampling)
    assert_same_answers(found, expected)
    assert failures


def test_preempted_rows_run_first_and_in_order(loaded, monkeypatch):
    LimitedMemory(monkeypatch, "decode", 2)
    joined: list[list[str]] = []
    prefill = ModelRunner.prefill

    def prefilling(self: ModelRunner, patch_BPD: Tensor, group: list[Any]) -> Any:
        joined.append([sequence.key for sequence in group])
        return prefill(self, patch_BPD, group)

    monkeypatch.setattr(ModelRunner, "prefill", prefilling)
    assert len(list(fresh(loaded, 4).ask(stream(6, ["a"]), QUESTIONS["free"]))) == 6
    keys = [f"{number} a" for number in range(6)]
    assert joined[:2] == [keys[:4], keys[:2]]
    assert [key for group in joined[1:] for key in group] == keys


# --- candidates


def test_oom_scores_candidates_of_fewer_rows_at_once(loaded, monkeypatch):
    choices = ("red circle", "blue", "a green square")
    question, images = tasks.ask(["what?"], choices=choices), stream(11, ["what?"], choices)
    expected = comparable(fresh(loaded, 32).ask(images, question))
    assert len({(row.choices or ())[0].logprob for _, row in expected}) == 11
    for site in ("encode", "prefill", "branch"):
        for size in (1, 3):
            with monkeypatch.context() as patch:
                memory, engine = LimitedMemory(patch, site, size), fresh(loaded, 32)
                found = list(engine.ask(images, question))
                assert [row_index for row_index, _ in found] == list(range(11))
                for (_, mine), (_, other) in zip(comparable(found), expected, strict=True):
                    assert mine.answer == other.answer
                    sums = [choice.logprob for choice in other.choices or ()]
                    assert [c.logprob for c in mine.choices or ()] == pytest.approx(sums, abs=1e-4)
                assert memory.asked.count(8) == 1, "a failed size is tried again"
                assert engine.batch_limits.rows <= size


# --- batch limits


@pytest.mark.parametrize("site", ["prefill", "insert", "decode"])
def test_batch_limits_hold_for_later_questions(loaded, monkeypatch, site):
    memory, engine = LimitedMemory(monkeypatch, site, 3), fresh(loaded)
    list(engine.ask(stream(), QUESTIONS["free"]))
    assert memory.asked[:2] == [8, 4]
    failures = memory.failures
    list(engine.ask(stream(), QUESTIONS["free"]))
    assert engine.batch_limits.summary() == "2 rows at once instead of 8"
    assert memory.failures == failures == 2


# --- a single row


def test_oom_of_a_single_row_costs_only_that_row(loaded, monkeypatch):
    question = Question("ask", None, TOKENS)
    images = stream(7, ["is it red?"])
    engine = fresh(loaded)
    engine.model.config = replace(engine.model.config, stop_tokens=(0,))  # every row decodes
    expected = comparable(engine.ask(images, question))
    decode = ModelRunner.decode

    def decoding(runner: ModelRunner) -> Any:
        if {2, 5} & {int(sequence.key[0]) for sequence in runner.rows}:
            raise MemoryError  # at any batch size
        return decode(runner)

    monkeypatch.setattr(ModelRunner, "decode", decoding)
    rows = list(engine.ask(images, question))
    found = comparable(rows)
    assert [row_index for row_index, row in found if row.error] == [2, 5]
    for (row_index, row), (_, other) in zip(found, expected, strict=True):
        if row_index not in (2, 5):
            assert row == other
    lost = dict(rows)[2]
    assert (lost.error, lost.answer, lost.boxes) == ("oom", None, ())
    assert lost.error_message
    assert lost.error_message[0].isupper()
    assert lost.error_message.endswith(".")
    assert (lost.id, lost.width, lost.load_ms) == ("2", RESOLUTION, 0.5)
    assert (lost.vision_ms, lost.prefill_ms, lost.decode_ms, lost.batch) == (None,) * 4


@pytest.mark.parametrize("site", ["encode", "prefill", "insert", "decode", "branch"])
def test_oom_of_every_first_row_ends_the_run(loaded, monkeypatch, site):
    engine = fresh(loaded)
    engine.model.config = replace(engine.model.config, stop_tokens=(0,))
    LimitedMemory(monkeypatch, site, 0)
    choices = ("red", "blue") if site == "branch" else ()
    question = tasks.ask(["a"], choices=choices) if choices else QUESTIONS["free"]
    rows, found = engine.ask(stream(7, ["a"], choices), question), []
    with pytest.raises(NoUsableDevice, match="even one row") as refused:
        found.extend((row_index, row.error) for row_index, row in rows)
    assert found == [(row_index, "oom") for row_index in range(MAX_LOST_AT_START - 1)]
    assert "--dtype" in refused.value.hint


def test_a_single_row_is_retried_with_an_empty_kv_cache(loaded, monkeypatch):
    """The retry does not free the KV cache's memory."""
    engine = fresh(loaded, 1)
    monkeypatch.setattr(
        LimitedMemory, "runs_out", lambda self, rows: bool(held and held[-1].allocated_rows)
    )
    held: list[KVCache] = []
    kv_cache = engine.model.kv_cache
    monkeypatch.setattr(
        engine.model, "kv_cache", lambda rows: held.append(kv_cache(rows)) or held[-1]
    )
    memory = LimitedMemory(monkeypatch, "prefill", 0)
    found = list(engine.ask(stream(3, ["a"]), QUESTIONS["free"]))
    assert [row.error for _, row in found] == [None] * 3
    assert memory.failures


@pytest.mark.parametrize("name", ["decode", "prefill"])
def test_oom_while_scores_are_in_flight_counts_prompts_once(loaded, monkeypatch, name):
    """Images with choices beside images without: a pass follows scores that are not read yet."""
    images = [
        (index, replace(image, item=replace(image.item, choices=("red", "blue") if n % 2 else ())))
        for n, (index, image) in enumerate(stream())
    ]
    question = tasks.ask(PROMPTS, max_new_tokens=TOKENS)
    expected = {index: row.answer for index, row in fresh(loaded).ask(images, question)}
    held, failed_with = record_caches(monkeypatch), []
    monkeypatch.setitem(model_runner.ASYNC_DEPTH, "cpu", 1)
    real = getattr(ModelRunner, name)

    def failing(runner: ModelRunner, *given: Any) -> Any:
        scores = [step for step in runner._in_flight if isinstance(step, InFlightScore)]
        if scores and (runner.rows or name != "decode") and len(failed_with) < 3:
            failed_with.append(len(runner.rows))
            raise MemoryError
        return real(runner, *given)

    monkeypatch.setattr(ModelRunner, name, failing)
    engine = fresh(loaded, 5)
    found = [(index, row.answer) for index, row in engine.ask(images, question)]
    assert sorted(found) == sorted(expected.items())
    assert failed_with
    assert engine.image_stats.prompts == 21
    assert not held[-1]._features
    assert not held[-1]._counts


def record_caches(monkeypatch: pytest.MonkeyPatch) -> list[ImageFeatureCache]:
    """Every image-feature cache that the engine creates, in order."""
    held: list[ImageFeatureCache] = []
    monkeypatch.setattr(
        engines,
        "ImageFeatureCache",
        lambda *given: held.append(ImageFeatureCache(*given)) or held[-1],
    )
    return held


def test_oom_decodes_masks_in_smaller_chunks(loaded, monkeypatch):
    question = tasks.segment(["a"], max_new_tokens=TOKENS)
    engine = fresh(loaded)
    expected = comparable(engine.ask(stream(5, ["segment a"]), question))
    real, asked = output.masks_of_rows, []

    def failing(found: Iterable[Any], decoder: Any) -> Any:
        several = list(found)
        asked.append(len(several))
        if len(several) > 1:
            raise MemoryError
        return real(several, decoder)

    monkeypatch.setattr(output, "masks_of_rows", failing)
    assert_same_answers(engine.ask(stream(5, ["segment a"]), question), expected)
    assert max(asked) > 1


# --- other errors, and fixed batches


@pytest.mark.parametrize("problem", OOM_ERRORS.values(), ids=OOM_ERRORS)
def test_oom_is_recognized_by_type_or_message(problem):
    assert is_oom(problem())


@pytest.mark.parametrize("words", OTHER_ERRORS)
@pytest.mark.parametrize("site", ["encode", "prefill", "insert", "decode"])
def test_other_errors_are_not_retried(loaded, monkeypatch, site, words):
    monkeypatch.setitem(OOM_ERRORS, "dead", lambda: RuntimeError(words))
    memory = LimitedMemory(monkeypatch, site, 0, "dead")
    with pytest.raises(RuntimeError, match=words):
        list(fresh(loaded).ask(stream(), QUESTIONS["free"]))
    assert memory.failures == 1


def test_fixed_batch_limits_raise_instead_of_shrinking(loaded, monkeypatch):
    for site, count in (("prefill", 8), ("decode", 8)):
        with monkeypatch.context() as patch:
            memory = LimitedMemory(patch, site, 4)
            engine = fresh(loaded)
            engine.batch_limits.is_fixed = True
            with pytest.raises(NoUsableDevice, match=f"for {count} rows") as refused:
                list(engine.ask(stream(), QUESTIONS["free"], SamplingParams(ignore_eos=True)))
            assert memory.failures == 1
            assert "--batch-size" in refused.value.hint


# --- memory freed after an OOM


def test_a_cache_that_does_not_fit_shrinks_to_the_batch_size(loaded, expected_answers, monkeypatch):
    """As on a GPU, which allocates all rows at once and also runs other programs."""
    engine, failures, allocate = fresh(loaded, 16), list[int](), kv_cache.allocate

    def limited(config: Any, rows: int, slots: int, *, like: Tensor) -> Any:
        if rows > 9:
            failures.append(rows)
            raise torch.OutOfMemoryError
        return allocate(config, rows, slots, like=like)

    monkeypatch.setattr(kv_cache, "allocate", limited)
    monkeypatch.setattr(engine.model, "kv_cache", partial(engine.model.kv_cache, fixed_shape=True))
    for _ in range(2):
        expected = expected_answers["free", GREEDY]
        assert_same_answers(engine.ask(stream(), QUESTIONS["free"]), expected)
        assert (failures, engine.batch_limits.rows) == ([16], 8)
    engine.batch_size = 16


# --- times


# --- a run that is stopped


@pytest.mark.parametrize("site", ["decode", "prefill"])
def test_running_rows_finish_if_oom_follows_a_stop(loaded, expected_answers, monkeypatch, site):
    """Preempted rows run again after a stop; rows that have never run stay unanswered."""
    steps: list[int] = []
    decode = ModelRunner.decode
    monkeypatch.setattr(
        ModelRunner, "decode", lambda self: steps.append(len(self.rows)) or decode(self)
    )
    monkeypatch.setattr(
        LimitedMemory, "runs_out", lambda self, rows: rows > 2 and bool(steps) and steps[0] == 8
    )
    LimitedMemory(monkeypatch, site, 0)
    engine = fresh(loaded)
    engine.model.config = replace(engine.model.config, stop_tokens=(0,))
    answers = list(engine.ask(stream(), QUESTIONS["free"], should_stop=lambda: bool(steps)))
    assert len(answers) == steps[0] == 8
    assert all(answer.error is None for _, answer in answers)
