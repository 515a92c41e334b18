"""Recorded steps give the same tokens as eager steps; a tape replaces CUDA graphs."""

import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pgcli import tasks
from pgcli.checkpoints import weights
from pgcli.checkpoints.config import read_config
from pgcli.engine import model_runner as module
from pgcli.engine import recorded_step
from pgcli.engine.engine import InferenceEngine
from pgcli.engine.model_runner import ModelRunner
from pgcli.engine.recorded_step import Recording, Step, StepRecorder
from pgcli.engine.sampler import NextTokens, SamplingParams
from pgcli.model.kv_cache import KVCache
from pgcli.model.paligemma import PaliGemma
from pgcli.tasks import Question
from tests.support.sequences import (
    fresh,
    make_sequences,
    prompts_of_many_lengths,
    record_on_tape,
    stream,
    vocabulary_of,
)
from tests.support.tiny import PATCHES, normal

GREEDY = SamplingParams(ignore_eos=True)
SAMPLED = SamplingParams(temperature=1.5, top_p=0.9, seed=3, ignore_eos=True)
ROWS = 4
#: Image and prompt, and answers beyond the first allocation: the cache grows in rows and slots.
LENGTHS = [6, 20, 9, 14, 1, 8, 105, 3]


class Recorder(StepRecorder):
    """Records on a tape, and counts the recordings and replays."""

    def __init__(self) -> None:
        super().__init__(self._record_and_count)
        self.recorded = self.replayed = 0

    def _record_and_count(self, step: Step) -> Recording:
        self.recorded += 1
        tokens, replay = record_on_tape(step)

        def counted() -> None:
            self.replayed += 1
            replay()

        return Recording(tokens, counted)


def recorders_from_now_on(monkeypatch: pytest.MonkeyPatch) -> list[Recorder]:
    """The recorders of all engines that start from now on."""
    recorders: list[Recorder] = []

    def make(model: PaliGemma) -> Recorder:
        recorders.append(Recorder())
        return recorders[-1]

    monkeypatch.setattr(module, "step_recorder", make)
    return recorders


@pytest.fixture(params=["tiny", "tiny2"])
def model(request) -> PaliGemma:
    folder: Path = request.getfixturevalue(request.param)
    return weights.load_paligemma(folder, read_config(folder), dtype=torch.float64)


@pytest.fixture(autouse=True)
def like_a_gpu(monkeypatch) -> None:
    """Fixed shapes, and tokens that are read a step late."""
    monkeypatch.setitem(module.ASYNC_DEPTH, "cpu", 1)
    real = KVCache.__init__

    def fixed(self: KVCache, *given: Any, **options: Any) -> None:
        real(self, *given, **options | {"fixed_shape": True})

    monkeypatch.setattr(KVCache, "__init__", fixed)


def answer(
    model: PaliGemma, sampling: SamplingParams, recorder: StepRecorder | None
) -> list[tuple[list[int], list[float]]]:
    """Tokens and log-probabilities of sequences that join and leave at different times."""
    vocabulary = vocabulary_of(model, 1)._replace(locations=range(300, 1324))
    runner = ModelRunner(model, vocabulary, sampling, max_rows=ROWS)
    runner._recorder = recorder
    patch_BPD = normal(len(LENGTHS), PATCHES, model.config.decoder.width)
    sequences = make_sequences(prompts_of_many_lengths(len(LENGTHS)), 1, sampling)
    for row, sequence in enumerate(sequences):
        sequence.max_new_tokens = LENGTHS[row]
        while len(runner.rows) == ROWS:
            runner.decode()
        runner.prefill(patch_BPD[row : row + 1], [sequence])
    while runner.rows:
        runner.decode()
    return [(one.tokens, [*one.logprobs, *one.near_logprobs]) for one in sequences]


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@torch.inference_mode()
def test_replayed_steps_give_the_tokens_of_eager_ones(model, sampling):
    recorder = Recorder()
    recorded = answer(model, sampling, recorder)
    for (tokens, logprobs), (expected, their_logprobs) in zip(
        recorded, answer(model, sampling, None), strict=True
    ):
        assert tokens == expected
        assert logprobs == pytest.approx(their_logprobs, abs=1e-9)
    assert recorder.recorded >= 3
    assert recorder.replayed > 2 * recorder.recorded


def test_ten_chunks_have_one_cache_and_record_no_step_after_the_first(loaded, monkeypatch):
    """Rows equal those of one engine per chunk, although image keys repeat."""
    question, images = Question("ask", None, 9), [image for _, image in stream(40)]
    chunks = [[(3 * n, images[4 * k + n]) for n in range(4)] for k in range(10)]
    caches, make_cache = [], PaliGemma.kv_cache

    def ask(engine: InferenceEngine, chunk: int) -> list[tuple[int, str | None, float | None]]:
        rows = engine.ask(chunks[chunk], question, GREEDY)
        return sorted((row, answer.answer, answer.logprob) for row, answer in rows)

    def counted(self: PaliGemma, *given: Any, **options: Any) -> KVCache:
        caches.append(make_cache(self, *given, **options))
        return caches[-1]

    expected = [ask(fresh(loaded), chunk) for chunk in range(10)]
    assert expected[0] != expected[1]
    monkeypatch.setattr(PaliGemma, "kv_cache", counted)
    recorders = recorders_from_now_on(monkeypatch)
    engine, recorded = fresh(loaded), []
    for chunk in range(10):
        assert ask(engine, chunk) == expected[chunk]
        recorded.append(recorders[0].recorded)
    assert len(caches) == len(recorders) == 1
    assert recorded[0] == recorded[-1] > 0
    next(engine.ask(chunks[0], question, GREEDY))  # the caller needs only one row
    assert ask(engine, 1) == expected[1]
    assert len(caches) == 1
    in_turns = zip(*(engine.ask(chunks[n], question, GREEDY) for n in (2, 3)), strict=True)
    for number, rows in enumerate(zip(*in_turns, strict=True), start=2):
        assert sorted((row, answer.answer) for row, answer in rows) == [
            (row, text) for row, text, _ in expected[number]
        ]
    assert len(caches) == 2


def test_a_runner_accepts_another_grammar(loaded, monkeypatch):
    """It continues without one; steps recorded for another grammar are not replayed."""
    monkeypatch.setattr("pgcli.engine.memory.gc.collect", lambda: 0)
    questions = [
        tasks.detect((name,), strict=strict, max_new_tokens=24)
        for name, strict in (("a", True), ("is it red?", True), ("a", False))
    ]

    def ask(engine: InferenceEngine, question: Question) -> list[tuple[int, str | None]]:
        rows = engine.ask(stream(4, question.templates), question)
        return sorted((row, answer.answer) for row, answer in rows)

    expected = [ask(fresh(loaded, 4), question) for question in questions]
    recorders = recorders_from_now_on(monkeypatch)
    engine = fresh(loaded, 4)
    assert [ask(engine, question) for question in questions] == expected
    assert len(recorders) == 1, "more than one runner"
    assert recorders[0].recorded > 2


# --- the recorder


def counting_step(calls: list[int]) -> Step:
    def step() -> NextTokens:
        calls.append(1)
        return NextTokens(torch.tensor([len(calls)]), torch.zeros(1))

    return step


def failing(problem: Exception) -> Callable[[Step], Recording]:
    def record(step: Step) -> Recording:
        raise problem

    return record


def run(recorder: StepRecorder, step: Step, times: int, memory: tuple[Tensor, ...] = ()) -> None:
    for _ in range(times):
        recorder.run(step, 4, memory)


def pretend_graphs(monkeypatch: pytest.MonkeyPatch, live: Counter[int] | None = None) -> list[None]:
    """Graphs without a GPU: counts each pool's graphs and the clearing of cuBLAS workspaces."""
    live = Counter() if live is None else live
    handles, cleared = count(), []

    class Graph:
        pool: int | None = None

        def __del__(self) -> None:
            if self.pool is not None:
                live[self.pool] -= 1

        def replay(self) -> None:
            pass

    def capture(graph: Graph, *, pool: int, **options: Any) -> AbstractContextManager[None]:
        assert live[pool] or pool not in live, "PyTorch cannot record into this pool again"
        live[pool] += 1
        graph.pool = pool
        return nullcontext()

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(handles))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    clear = partial(cleared.append, None)
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", clear, raising=False)
    return cleared


def test_steps_run_eagerly_with_one_warning_if_recording_fails():
    calls: list[int] = []
    recorder = StepRecorder(failing(RuntimeError("operation not permitted\nwhen capturing")))
    with pytest.warns(UserWarning, match=r"CUDA graphs.*\(operation not permitted\)"):
        run(recorder, counting_step(calls), 5)
    recorder.drop()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(recorder, counting_step(calls), 5)
    assert len(calls) == 10


def test_graphs_share_a_pool_until_the_last_is_gone(monkeypatch):
    """Also with graphs of other models: cuBLAS' workspace is in the pool of the first graph."""
    live: Counter[int] = Counter()
    cleared = pretend_graphs(monkeypatch, live)
    record = recorded_step.CudaGraphs(torch.device("cuda"))
    first, second = StepRecorder(record), StepRecorder(record)

    def record_two(recorder: StepRecorder) -> None:
        for rows in (2, 4):
            for _ in range(3):
                recorder.run(counting_step([]), rows, ())

    record_two(first)
    record_two(second)
    assert +live == {0: 4}
    first.drop()
    record_two(first)
    assert +live == {0: 4}
    assert len(cleared) == 1
    first.drop()
    second.drop()
    record_two(second)
    assert +live == {1: 2}
    assert len(cleared) == 2, "the workspace is not left in the former pool"
