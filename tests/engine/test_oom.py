"""Memory that runs out, wherever it does: every row once, the same answers, in smaller batches."""

from __future__ import annotations

import json
import random
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pgcli import tasks
from pgcli.checkpoints.find import Checkpoint
from pgcli.cli.app import main
from pgcli.engine import engine as engines
from pgcli.engine import memory as memory_module
from pgcli.engine import model_runner, output, sampler, scheduler
from pgcli.engine.engine import InferenceEngine
from pgcli.engine.image_cache import ImageFeatureCache
from pgcli.engine.loader import load
from pgcli.engine.model_runner import ModelRunner
from pgcli.engine.oom import (
    BATCHES_BEFORE_GROWTH,
    MAX_LOST_AT_START,
    BatchLimits,
    Limit,
    catch_oom,
    is_oom,
    run_in_chunks,
)
from pgcli.engine.sampler import GREEDY, SamplingParams
from pgcli.errors import NoUsableDevice
from pgcli.model.kv_cache import KVCache
from pgcli.model.paligemma import PaliGemma
from pgcli.records import Answer, DecodedImage, Item
from pgcli.tasks import Question
from tests.support.tiny import RESOLUTION

TOKENS = 7
SAMPLED = SamplingParams(temperature=1.5, top_k=20, seed=4)
PROBLEMS: dict[str, Callable[[], Exception]] = {
    "torch": lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    "python": MemoryError,
    "allocator": lambda: RuntimeError(
        "[enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate memory"
    ),
    "driver": lambda: RuntimeError("CUDA error: out of memory"),
    "blas": lambda: RuntimeError(
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"
    ),
}
DEAD = (
    "CUDA error: an illegal memory access was encountered",
    "CUDA error: device-side assert triggered",
    "shapes do not match",
)
#: Where memory is taken, and of how many rows at once.
SITES: dict[str, tuple[type, str, Callable[..., int]]] = {
    "encode": (PaliGemma, "encode", lambda model, pixels_BCRR: len(pixels_BCRR)),
    "prefill": (PaliGemma, "prefill", lambda model, patch_BPD, *_: len(patch_BPD)),
    "insert": (KVCache, "insert", lambda cache, rows, *_: cache.rows + rows),
    "decode": (PaliGemma, "decode_step", lambda model, token_R, cache: cache.rows),
    "branch": (PaliGemma, "score_branches", lambda model, token_BL, *_: len(token_BL)),
}


class Memory:
    """Memory for so many rows at a site. `asked` says for how many rows it was wanted.

    Where the model works all is done before it turns out too little: whatever changes, has changed.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, site: str, rows: int, problem: str = "torch"
    ):
        self.rows, self.asked, self.failures = rows, [], 0
        where, name, count = SITES[site]
        real = getattr(where, name)

        def exhausting(*given: Any, **more: Any) -> Any:
            wanted = count(*given)
            self.asked.append(wanted)
            too_little = self.runs_out(wanted)
            done = None if too_little and where is KVCache else real(*given, **more)
            if too_little:
                self.failures += 1
                raise PROBLEMS[problem]()
            return done

        monkeypatch.setattr(where, name, exhausting)

    def runs_out(self, wanted: int) -> bool:
        return wanted > self.rows


@pytest.fixture(scope="module")
def loaded(tiny: Path) -> InferenceEngine:
    return load(Checkpoint("tiny", tiny), device="cpu", dtype="float32", batch_size=8)


@pytest.fixture(autouse=True)
def small_heap(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other libraries keep alive is not searched for each failure: it takes a tenth second."""
    monkeypatch.setattr("pgcli.engine.oom.gc.collect", lambda: 0)


def fresh(loaded: InferenceEngine, batch_size: int = 8) -> InferenceEngine:
    """The same model as an engine that knows nothing of its memory; answers of many lengths."""
    model = loaded.model
    stops = tuple(range(1, model.config.decoder.vocab_size, 6))
    model.config = replace(model.config, stop_tokens=stops)
    return InferenceEngine(
        model, loaded.tokenizer, loaded._preprocessing, label="tiny", batch_size=batch_size
    )


PROMPTS = ("caption en", "is it red?", "how many red circles are there?")


def stream(
    count: int = 7, prompts: Sequence[str] = PROMPTS, choices: tuple[str, ...] = ()
) -> list[tuple[int, DecodedImage]]:
    """Pictures of noise, each asked all prompts."""
    noise = np.random.default_rng(5).integers(0, 256, (count, RESOLUTION, RESOLUTION, 3), np.uint8)
    return [
        (
            number * len(prompts),
            DecodedImage(
                Item(number, str(number), str(number), prompts=tuple(prompts), choices=choices),
                *(RESOLUTION, RESOLUTION, square, 0.5),
            ),
        )
        for number, square in enumerate(noise)
    ]


QUESTIONS = {
    "free": Question("ask", None, TOKENS),
    "strict": tasks.detect(["red circle", "blue square"], strict=True, max_new_tokens=14),
}


def told(found: Iterable[tuple[int, Answer]]) -> list[tuple[int, Answer]]:
    """In their order, without what may depend on the batch."""
    return sorted(
        (
            (place, replace(row, vision_ms=0, prefill_ms=0, decode_ms=0, batch=0, logprob=0))
            for place, row in found
        ),
        key=lambda one: one[0],
    )


def same(mine: Iterable[tuple[int, Answer]], others: Iterable[tuple[int, Answer]]) -> None:
    """Every row once, and as the other has it; boxes' scores within rounding."""
    mine, others = told(mine), told(others)
    assert [place for place, _ in mine] == [place for place, _ in others]
    for (_, one), (_, other) in zip(mine, others, strict=True):
        assert replace(one, boxes=()) == replace(other, boxes=())
        assert [replace(box, score=0) for box in one.boxes] == [
            replace(box, score=0) for box in other.boxes
        ]


# --- no answer depends on it


@pytest.fixture(scope="module")
def unhindered(
    loaded: InferenceEngine,
) -> dict[tuple[str, SamplingParams], list[tuple[int, Answer]]]:
    found = {
        (name, sampling): told(fresh(loaded).ask(stream(), question, sampling))
        for name, question in QUESTIONS.items()
        for sampling in (GREEDY, SAMPLED)
    }
    lengths = {row.tokens for rows in found.values() for _, row in rows}
    assert len(lengths) > 4, "rows must end at different times to be of any use here"
    return found


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("site", ["encode", "prefill", "insert", "decode"])
def test_no_row_is_lost_doubled_or_changed_wherever_memory_runs_out(
    loaded: InferenceEngine,
    unhindered: Any,
    monkeypatch: pytest.MonkeyPatch,
    site: str,
    problem: str,
) -> None:
    for (name, sampling), expected in unhindered.items():
        for size in (1, 2, 5):
            with monkeypatch.context() as patch:
                memory = Memory(patch, site, size, problem)
                same(fresh(loaded).ask(stream(), QUESTIONS[name], sampling), expected)
                assert memory.failures or size > 2


@pytest.mark.parametrize("site", ["prefill", "insert", "decode"])
def test_nor_where_rows_join_a_few_at_a_time(
    loaded: InferenceEngine, unhindered: Any, monkeypatch: pytest.MonkeyPatch, site: str
) -> None:
    monkeypatch.setitem(memory_module.GROUP_TOKENS, "cpu", 3 * (16 + memory_module.USUAL_PROMPT))
    for size in (1, 2, 5, 7):
        with monkeypatch.context() as patch:
            memory = Memory(patch, site, size)
            found = fresh(loaded).ask(stream(), QUESTIONS["free"], SAMPLED)
            same(found, unhindered["free", SAMPLED])
            assert bool(memory.failures) == (size < 3 or site != "prefill")


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), share=st.sampled_from([0.02, 0.1, 0.3]))
@pytest.mark.slow
def test_nor_where_it_runs_out_at_any_time(
    loaded: InferenceEngine, unhindered: Any, seed: int, share: float
) -> None:
    """Of more than one row: one that finds none alone is another matter."""
    draws = random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Memory, "runs_out", lambda self, rows: rows > 1 and draws.random() < share)
        for site in ("encode", "prefill", "insert", "decode"):
            Memory(patch, site, 0)
        for (name, sampling), expected in unhindered.items():
            same(fresh(loaded).ask(stream(), QUESTIONS[name], sampling), expected)


def test_nor_where_it_runs_out_after_some_layers_of_a_prefill_are_stored(
    loaded: InferenceEngine, unhindered: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(memory_module.GROUP_TOKENS, "cpu", 3 * (16 + memory_module.USUAL_PROMPT))
    real, calls = KVCache.write, []

    def exhausting(self: KVCache, layer: int, key: Tensor, value: Tensor) -> Any:
        if layer == 1 and key.shape[2] > 1:
            calls.append(layer)
            if len(calls) % 3 == 1 and len(key) > 1:
                raise MemoryError
        return real(self, layer, key, value)

    monkeypatch.setattr(KVCache, "write", exhausting)
    for (name, sampling), expected in unhindered.items():
        same(fresh(loaded).ask(stream(), QUESTIONS[name], sampling), expected)
    assert len(calls) > 8


@pytest.mark.parametrize("where", ["select_tokens", "sample"])
def test_nor_where_it_runs_out_after_a_token_was_drawn(
    loaded: InferenceEngine, unhindered: Any, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """The draws of a row that starts over start over with it."""
    owner = model_runner if where == "select_tokens" else sampler
    real, calls = getattr(owner, where), []

    def exhausting(logits_BV: Tensor, *given: Any) -> Any:
        done = real(logits_BV, *given)
        calls.append(len(logits_BV))
        if len(calls) % 5 == 2 and len(logits_BV) > 1:
            raise MemoryError
        return done

    monkeypatch.setattr(owner, where, exhausting)
    same(fresh(loaded).ask(stream(), QUESTIONS["free"], SAMPLED), unhindered["free", SAMPLED])
    assert len(calls) > 20


def test_rows_that_start_over_go_first_and_in_their_order(
    loaded: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    Memory(monkeypatch, "decode", 2)
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


def test_while_there_is_memory_groups_are_as_they_were(
    loaded: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "MIN_REFILL_FRACTION", 1.0)
    memory = Memory(monkeypatch, "prefill", 99)
    list(fresh(loaded, 4).ask(stream(11, ["a"]), QUESTIONS["free"]))
    assert memory.asked == [4, 4, 3]


# --- candidates


def test_candidates_are_scored_for_fewer_rows_at_once(
    loaded: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    choices = ("red circle", "blue", "a green square")
    question, pictures = tasks.ask(["what?"], choices=choices), stream(11, ["what?"], choices)
    expected = told(fresh(loaded, 32).ask(pictures, question))
    assert len({(row.choices or ())[0].logprob for _, row in expected}) == 11
    for site in ("encode", "prefill", "branch"):
        for size in (1, 3):
            with monkeypatch.context() as patch:
                memory, engine = Memory(patch, site, size), fresh(loaded, 32)
                found = list(engine.ask(pictures, question))
                assert [place for place, _ in found] == list(range(11))
                for (_, mine), (_, other) in zip(told(found), expected, strict=True):
                    assert mine.answer == other.answer
                    sums = [choice.logprob for choice in other.choices or ()]
                    assert [c.logprob for c in mine.choices or ()] == pytest.approx(sums, abs=1e-4)
                assert memory.asked.count(8) == 1, "what failed once is not tried again"
                assert engine.batch_limits.scored.now <= size


# --- what is learnt of it


@pytest.mark.parametrize("site", ["prefill", "decode"])
def test_what_was_learnt_holds_for_later_questions(
    loaded: InferenceEngine, monkeypatch: pytest.MonkeyPatch, site: str
) -> None:
    memory, engine = Memory(monkeypatch, site, 3), fresh(loaded)
    list(engine.ask(stream(), QUESTIONS["free"]))
    assert memory.asked[:2] == [8, 4]
    failures = memory.failures
    list(engine.ask(stream(), QUESTIONS["free"]))
    assert memory.failures == failures == 2
    what = {"prefill": "read together", "decode": "rows at once"}[site]
    assert engine.batch_limits.summary() == f"2 {what} instead of 8"


def test_rows_beside_which_one_finds_no_memory_become_fewer_and_groups_do_not(
    loaded: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(memory_module.GROUP_TOKENS, "cpu", 2 * (16 + memory_module.USUAL_PROMPT))
    memory, engine = Memory(monkeypatch, "insert", 4), fresh(loaded)
    list(engine.ask(stream(), QUESTIONS["free"]))
    assert memory.failures
    assert engine.batch_limits.at_once.now <= 4
    assert engine.batch_limits.read.now > 2
    assert "rows at once" in engine.batch_limits.summary()
    assert "read" not in engine.batch_limits.summary()


@pytest.mark.parametrize("site", ["prefill", "decode"])
def test_what_one_process_learnt_another_need_not_learn_again(
    loaded: InferenceEngine, monkeypatch: pytest.MonkeyPatch, site: str
) -> None:
    memory, engine = Memory(monkeypatch, site, 3), fresh(loaded)
    expected = list(engine.ask(stream(), QUESTIONS["free"]))
    known = json.loads(json.dumps(engine.batch_limits.state_dict()))
    failures, another = memory.failures, fresh(loaded)
    assert failures > 0
    another.batch_limits.load_state_dict(known)
    answers = list(another.ask(stream(), QUESTIONS["free"]))
    assert {place for place, _ in answers} == {place for place, _ in expected}
    assert memory.failures == failures
    assert another.batch_limits.summary() == "", "nothing shrank in this one"
    assert another.batch_limits.state_dict() == known


def test_who_never_ran_out_has_nothing_to_hand_on() -> None:
    assert BatchLimits().state_dict() == {}
    headroom = BatchLimits()
    headroom.load_state_dict({})
    assert headroom.at_once.now == sys.maxsize


class TestCap:
    def test_it_is_no_limit_till_memory_runs_out_and_then_half_of_what_failed(self) -> None:
        cap = Limit()
        for _ in range(200):
            cap.succeeded(10**6)
        assert cap.now > 10**6
        cap.failed(25)
        assert (cap.now, cap.least, cap.most) == (12, 12, 25)
        cap.failed(1)
        assert cap.now == 1

    def test_what_fails_while_more_wind_down_does_not_raise_it(self) -> None:
        cap = Limit()
        cap.failed(8)
        cap.failed(30)
        assert cap.now == 4

    def test_it_is_raised_by_a_quarter_after_so_many_good_groups_of_its_size(self) -> None:
        cap = Limit()
        cap.failed(20)
        for _ in range(BATCHES_BEFORE_GROWTH - 1):
            cap.succeeded(10)
            cap.succeeded(9)
        assert cap.now == 10
        cap.succeeded(10)
        assert cap.now == 13
        assert cap.least == 10

    def test_a_failure_begins_the_count_anew(self) -> None:
        cap = Limit()
        cap.failed(20)
        for _ in range(BATCHES_BEFORE_GROWTH - 1):
            cap.succeeded(10)
        cap.failed(10)
        cap.succeeded(5)
        assert cap.now == 5

    @pytest.mark.parametrize("fits", [1, 2, 9, 31, 60])
    def test_it_settles_below_what_failed_twice(self, fits: int) -> None:
        cap, failed = Limit(), []
        for _ in range(400 * BATCHES_BEFORE_GROWTH):
            rows = min(64, cap.now)
            if rows > fits:
                failed.append(rows)
                cap.failed(rows)
            else:
                cap.succeeded(rows)
        assert max(map(failed.count, failed)) <= 2
        assert len(failed) < 40
        assert cap.now > fits / 2


# --- one row alone


def marked(monkeypatch: pytest.MonkeyPatch, site: str, marks: set[int]) -> None:
    """No memory for these pictures, however few are beside them."""
    pictures = stream()

    def squares(places: Iterable[int]) -> list[bytes]:
        return [pictures[place][1].pixels.tobytes() for place in places]

    wrong = set(squares(marks))
    if site == "encode":
        from_numpy = torch.from_numpy

        def exhausting(array: Any) -> Tensor:
            if array.tobytes() in wrong:
                raise MemoryError
            return from_numpy(array)

        monkeypatch.setattr("pgcli.engine.image_cache.torch.from_numpy", exhausting)
        return
    decode = ModelRunner.decode

    def decoding(self: ModelRunner) -> Any:
        if marks & {int(sequence.key[0]) for sequence in self.rows}:
            raise MemoryError
        return decode(self)

    monkeypatch.setattr(ModelRunner, "decode", decoding)


@pytest.mark.parametrize("site", ["encode", "decode"])
def test_a_row_for_which_alone_there_is_none_is_an_error_row_and_the_others_are_answered(
    loaded: InferenceEngine, monkeypatch: pytest.MonkeyPatch, site: str
) -> None:
    question = Question("ask", None, TOKENS)
    pictures = stream(7, ["is it red?"])
    engine = fresh(loaded)
    engine.model.config = replace(engine.model.config, stop_tokens=(0,))  # all have to step
    expected = told(engine.ask(pictures, question))
    marked(monkeypatch, site, {2, 5})
    found = told(engine.ask(pictures, question))
    assert [place for place, row in found if row.error] == [2, 5]
    for (place, row), (_, other) in zip(found, expected, strict=True):
        if place not in (2, 5):
            assert row == other
    lost = dict(found)[2]
    assert (lost.error, lost.answer, lost.boxes) == ("oom", None, ())
    assert lost.error_message
    assert lost.error_message[0].isupper()
    assert lost.error_message.endswith(".")
    assert (lost.id, lost.width, lost.load_ms) == ("2", RESOLUTION, 0.5)


def test_an_error_row_of_exhaustion_has_no_times(
    loaded: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    marked(monkeypatch, "decode", {0})
    engine = fresh(loaded)
    engine.model.config = replace(engine.model.config, stop_tokens=(0,))
    (lost,) = [row for _, row in engine.ask(stream(2, ["a"]), QUESTIONS["free"]) if row.error]
    assert (lost.vision_ms, lost.prefill_ms, lost.decode_ms, lost.batch) == (None,) * 4


def taken(rows: Iterable[tuple[int, Answer]]) -> tuple[list[tuple[int, Any]], Iterator[None]]:
    """A list of places and errors that grows while the rows are taken from the iterator."""
    found: list[tuple[int, Any]] = []
    return found, (found.append((place, row.error)) for place, row in rows)


@pytest.mark.parametrize("site", ["encode", "prefill", "insert", "decode"])
def test_where_the_first_rows_all_find_none_the_run_ends(
    loaded: InferenceEngine, monkeypatch: pytest.MonkeyPatch, site: str
) -> None:
    engine = fresh(loaded)
    engine.model.config = replace(engine.model.config, stop_tokens=(0,))
    Memory(monkeypatch, site, 0)
    found, rows = taken(engine.ask(stream(7, ["a"]), QUESTIONS["free"]))
    with pytest.raises(NoUsableDevice, match="even one row") as refused:
        list(rows)
    assert found == [(place, "oom") for place in range(MAX_LOST_AT_START - 1)]
    assert "--dtype" in refused.value.hint


def test_so_it_does_where_candidates_are_scored(
    loaded: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    Memory(monkeypatch, "branch", 0)
    choices = ("red", "blue")
    question = tasks.ask(["a"], choices=choices)
    found, rows = taken(fresh(loaded).ask(stream(7, ["a"], choices), question))
    with pytest.raises(NoUsableDevice, match="even one row"):
        list(rows)
    assert found == [(place, "oom") for place in range(MAX_LOST_AT_START - 1)]


def test_once_a_row_was_answered_the_run_goes_on_whatever_is_lost(
    loaded: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = fresh(loaded)
    assert [row.error for _, row in engine.ask(stream(1, ["a"]), QUESTIONS["free"])] == [None]
    Memory(monkeypatch, "prefill", 0)
    found = list(engine.ask(stream(), QUESTIONS["free"]))
    assert [row.error for _, row in found] == ["oom"] * 21


def test_so_it_does_once_a_candidate_was_picked(
    loaded: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, choices = fresh(loaded), ("red", "blue")
    question = tasks.ask(["a"], choices=choices)
    pictures = stream(9, ["a"], choices)
    assert [row.error for _, row in engine.ask(pictures[:1], question)] == [None]
    Memory(monkeypatch, "branch", 0)
    assert [row.error for _, row in engine.ask(pictures, question)] == ["oom"] * 9


def test_a_row_alone_is_tried_again_without_what_others_left(
    loaded: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory that rows took stays taken for those to come, and pictures are kept."""
    engine = fresh(loaded, 1)
    monkeypatch.setattr(
        Memory, "runs_out", lambda self, rows: bool(held and held[-1].allocated_rows)
    )
    held: list[KVCache] = []
    kv_cache = engine.model.kv_cache
    monkeypatch.setattr(
        engine.model, "kv_cache", lambda rows: held.append(kv_cache(rows)) or held[-1]
    )
    memory = Memory(monkeypatch, "prefill", 0)
    found = list(engine.ask(stream(3, ["a"]), QUESTIONS["free"]))
    assert [row.error for _, row in found] == [None] * 3
    assert memory.failures


def test_a_row_that_goes_on_alone_has_a_second_try_too(
    loaded: InferenceEngine, unhindered: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = iter(range(1000))
    monkeypatch.setattr(Memory, "runs_out", lambda self, rows: next(calls) == 2)
    memory, engine = Memory(monkeypatch, "decode", 0), fresh(loaded, 1)
    same(engine.ask(stream(), QUESTIONS["free"]), unhindered["free", GREEDY])
    assert memory.failures == 1


@pytest.mark.parametrize("site", ["prefill", "decode", "branch"])
def test_its_second_try_has_the_memory_of_the_pictures_that_were_kept(
    loaded: InferenceEngine, monkeypatch: pytest.MonkeyPatch, site: str
) -> None:
    held = noted_features(monkeypatch)
    monkeypatch.setattr(Memory, "runs_out", lambda self, rows: len(held[-1]._features) > 1)
    memory, choices = Memory(monkeypatch, site, 0), ("red", "blue") if site == "branch" else ()
    question = tasks.ask(PROMPTS, choices=choices, max_new_tokens=None if choices else 3)
    engine = fresh(loaded, 8 if choices else 2)
    engine.model.config = replace(engine.model.config, stop_tokens=(0, 1))
    found = list(engine.ask(stream(2, choices=choices), question))
    assert [row.error for _, row in found] == [None] * 6
    assert memory.failures


@pytest.mark.parametrize("site", ["prefill", "decode", "branch"])
def test_nothing_is_kept_of_pictures_and_their_prompts_are_counted_once(
    loaded: InferenceEngine, monkeypatch: pytest.MonkeyPatch, site: str
) -> None:
    held, calls = noted_features(monkeypatch), iter(range(1000))
    monkeypatch.setattr(Memory, "runs_out", lambda self, rows: next(calls) in (2, 3, 4, 5, 6))
    memory, engine = Memory(monkeypatch, site, 0), fresh(loaded)
    choices = ("red", "blue") if site == "branch" else ()
    question = tasks.ask(PROMPTS, choices=choices, max_new_tokens=None if choices else TOKENS)
    assert len(list(engine.ask(stream(choices=choices), question))) == 21
    assert memory.failures == 5
    assert engine.image_stats.prompts == 21
    assert not held[-1]._features
    assert not held[-1]._counts


def noted_features(monkeypatch: pytest.MonkeyPatch) -> list[ImageFeatureCache]:
    """What the engine makes of them, in order."""
    held: list[ImageFeatureCache] = []
    monkeypatch.setattr(
        engines,
        "ImageFeatureCache",
        lambda *given: held.append(ImageFeatureCache(*given)) or held[-1],
    )
    return held


def test_masks_that_find_no_memory_together_are_decoded_apart(
    loaded: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    question = tasks.segment(["a"], max_new_tokens=TOKENS)
    engine = fresh(loaded)
    expected = told(engine.ask(stream(5, ["segment a"]), question))
    real, asked = output.masks_of_rows, []

    def exhausting(found: Iterable[Any], decoder: Any) -> Any:
        several = list(found)
        asked.append(len(several))
        if len(several) > 1:
            raise MemoryError
        return real(several, decoder)

    monkeypatch.setattr(output, "masks_of_rows", exhausting)
    same(engine.ask(stream(5, ["segment a"]), question), expected)
    assert max(asked) > 1


# --- what is no exhaustion, and what is not halved


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_exhaustion_is_known_by_its_type_or_its_words(problem: Callable[[], Exception]) -> None:
    assert is_oom(problem())


@pytest.mark.parametrize("words", DEAD)
@pytest.mark.parametrize("site", ["encode", "prefill", "insert", "decode"])
def test_after_any_other_failure_nothing_is_tried_again(
    loaded: InferenceEngine, monkeypatch: pytest.MonkeyPatch, site: str, words: str
) -> None:
    monkeypatch.setitem(PROBLEMS, "dead", lambda: RuntimeError(words))
    memory = Memory(monkeypatch, site, 0, "dead")
    with pytest.raises(RuntimeError, match=words):
        list(fresh(loaded).ask(stream(), QUESTIONS["free"]))
    assert memory.failures == 1


def test_a_measurement_is_not_made_of_smaller_batches(
    loaded: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for site, count in (("prefill", 8), ("decode", 8)):
        with monkeypatch.context() as patch:
            memory = Memory(patch, site, 4)
            engine = fresh(loaded)
            engine.batch_limits.is_fixed = True
            with pytest.raises(NoUsableDevice, match=f"for {count} rows") as refused:
                list(engine.ask(stream(), QUESTIONS["free"], SamplingParams(ignore_eos=True)))
            assert memory.failures == 1
            assert "--batch-size" in refused.value.hint


# --- what the failed pass held


def test_the_tensors_of_a_failed_pass_are_free_when_the_next_is_tried() -> None:
    alive: list[weakref.ref[Tensor]] = []

    def work() -> int:
        large = torch.zeros(8)
        alive.append(weakref.ref(large))
        if len(alive) == 1:
            raise torch.OutOfMemoryError(str(large.sum()))
        return sum(one() is not None for one in alive)

    assert catch_oom(work) is None
    assert catch_oom(work) == 1, "the second's own and no other"


def test_the_cache_of_preempted_rows_is_free_when_they_run_again(
    loaded: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = fresh(loaded)
    made: list[weakref.ref[KVCache]] = []
    kv_cache, alive = engine.model.kv_cache, []

    def watched(rows: int) -> KVCache:
        cache = kv_cache(rows)
        made.append(weakref.ref(cache))
        return cache

    insert = KVCache.insert

    def inserting(self: KVCache, *given: Any, **more: Any) -> Any:
        alive.append(sum(one() is not None for one in made))
        return insert(self, *given, **more)

    monkeypatch.setattr(engine.model, "kv_cache", watched)
    monkeypatch.setattr(KVCache, "insert", inserting)
    Memory(monkeypatch, "decode", 3)
    list(engine.ask(stream(), QUESTIONS["free"]))
    assert len(made) > 2
    assert set(alive) == {1}


# --- halves of anything


@given(things=st.lists(st.integers(), max_size=40), fits=st.integers(1, 12))
@settings(max_examples=50, deadline=None)
def test_halves_make_of_each_thing_what_the_whole_would(things: list[int], fits: int) -> None:
    def work(some: Sequence[int]) -> list[int]:
        if len(some) > fits:
            raise MemoryError
        return [-one for one in some]

    assert list(run_in_chunks(work, things)) == [-one for one in things]


def test_an_input_that_finds_no_memory_alone_has_no_result() -> None:
    def work(some: Sequence[str]) -> Sequence[str]:
        if "b" in some:
            raise MemoryError
        return some

    assert list(run_in_chunks(work, "abc")) == ["a", None, "c"]


def test_an_engine_that_never_ran_out_has_nothing_to_tell() -> None:
    headroom = BatchLimits()
    assert headroom.summary() == ""
    headroom.at_once.failed(64)
    headroom.read.failed(7)
    assert headroom.summary() == "32 rows at once instead of 64, 3 read together instead of 7"


# --- what it cost


class Clock:
    """A watch on which every pass that was measured took ten milliseconds."""

    measured = 0

    def __init__(self, device: torch.device):
        self.now = 0.0

    def mark(self) -> float:
        self.now += 10
        return self.now

    def between(self, first: float, second: float) -> float:
        Clock.measured += 1
        return second - first


def test_the_rows_times_are_those_of_all_passes_also_of_those_that_were_for_nothing(
    loaded: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_runner, "Stopwatch", Clock)
    monkeypatch.setattr("pgcli.engine.image_cache.Stopwatch", Clock)
    monkeypatch.setattr(Clock, "measured", 0)
    steps = iter(range(1000))
    # the fourth step finds none, when some rows have ended and others have three tokens
    monkeypatch.setattr(Memory, "runs_out", lambda self, rows: next(steps) == 3)
    Memory(monkeypatch, "decode", 0)
    found = list(fresh(loaded).ask(stream(), QUESTIONS["free"]))
    spent = sum(
        (row.vision_ms or 0) + (row.prefill_ms or 0) + (row.decode_ms or 0) for _, row in found
    )
    assert spent == pytest.approx(10 * Clock.measured)


# --- on the command line


def called(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, list[Any], str]:
    folder = str(Path(__file__).parents[2] / "examples" / "images")
    code = main(["ask", folder, "--model", "demo", "--batch-size", "8", *options])
    shown = capsys.readouterr()
    found = [json.loads(line) for line in shown.out.splitlines()]
    return (
        code,
        [(row["id"], row["prompt"], row["answer"], row["error"]) for row in found],
        shown.err,
    )


PROMPT = ("--prompt", "caption en", "--prompt", "how many circles are there?")


def test_a_run_goes_on_in_smaller_batches_and_says_so_once_and_at_its_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, expected, err = called(capsys, *PROMPT)
    assert code == 0
    pictures = len(expected) // 2
    assert f"pgcli: images reused: {pictures} of {2 * pictures} prompts\n" in err
    assert "memory ran out" not in err
    Memory(monkeypatch, "decode", 2)
    assert called(capsys, *PROMPT)[:2] == (0, expected)
    code, _, err = called(capsys, *PROMPT)
    said = [line for line in err.splitlines() if "memory ran out" in line]
    assert len(said) == 2
    assert said[0].endswith("; no row is lost")
    assert said[1].startswith("pgcli: memory ran out: ")
    assert "rows at once instead of" in said[1]


def test_a_device_without_memory_for_any_row_is_exit_code_17(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Memory(monkeypatch, "prefill", 0)
    code, found, err = called(capsys, *PROMPT)
    assert code == 17
    assert len(found) < MAX_LOST_AT_START
    assert "no memory left for even one row" in err
    code, found, err = called(capsys, *PROMPT, "--limit", "2")
    assert (code, [error for *_, error in found]) == (3, ["oom", "oom"])
    assert "of which 2 with errors: oom 2" in err


def test_one_prompt_a_picture_has_nothing_to_reuse(capsys: pytest.CaptureFixture[str]) -> None:
    assert "reused" not in called(capsys, *PROMPT[:2])[2]


# --- what was once lost


def test_a_learnt_limit_survives_a_later_oom(
    loaded: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group that fails next to running rows says nothing of groups that were read alone."""
    monkeypatch.setitem(memory_module.GROUP_TOKENS, "cpu", 4 * (16 + memory_module.USUAL_PROMPT))
    engine = fresh(loaded)
    engine.batch_limits.read.failed(6)
    learnt = engine.batch_limits.state_dict()["read"]
    Memory(monkeypatch, "insert", 4)
    list(engine.ask(stream(), QUESTIONS["free"]))
    assert engine.batch_limits.at_once.now <= 4
    assert engine.batch_limits.state_dict()["read"] == learnt


@pytest.mark.parametrize("site", ["decode", "prefill"])
def test_rows_under_way_are_finished_if_oom_follows_a_stop(
    loaded: InferenceEngine, unhindered: Any, monkeypatch: pytest.MonkeyPatch, site: str
) -> None:
    """They were preempted and wait, as those do that never ran and are left unanswered."""
    steps: list[int] = []
    decode = ModelRunner.decode
    monkeypatch.setattr(
        ModelRunner, "decode", lambda self: steps.append(len(self.rows)) or decode(self)
    )
    monkeypatch.setattr(
        Memory, "runs_out", lambda self, rows: rows > 2 and bool(steps) and steps[0] == 8
    )
    Memory(monkeypatch, site, 0)
    engine = fresh(loaded)
    engine.model.config = replace(engine.model.config, stop_tokens=(0,))
    answers = list(engine.ask(stream(), QUESTIONS["free"], stopped=lambda: bool(steps)))
    assert len(answers) == steps[0] == 8
    assert all(answer.error is None for _, answer in answers)


def test_oom_after_a_group_has_joined_loses_and_doubles_no_row(
    loaded: InferenceEngine, unhindered: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runner has the rows then, and the results of the step before are being read."""
    monkeypatch.setitem(model_runner.ASYNC_DEPTH, "cpu", 1)
    monkeypatch.setitem(memory_module.GROUP_TOKENS, "cpu", 3 * (16 + memory_module.USUAL_PROMPT))
    real, calls = ModelRunner._read, []

    def exhausting(self: ModelRunner, step: Any) -> Any:
        calls.append(step)
        if len(calls) % 4 == 2 and len(self.rows) > 1:
            raise MemoryError
        return real(self, step)

    monkeypatch.setattr(ModelRunner, "_read", exhausting)
    for (name, sampling), expected in unhindered.items():
        if name == "free":
            same(fresh(loaded).ask(stream(), QUESTIONS[name], sampling), expected)
    assert len(calls) > 8
