"""Sequences for an engine, and what an engine sees of them: memory, time, and operations."""

from __future__ import annotations

import random
from collections import abc
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pgcli.engine.engine import InferenceEngine
from pgcli.engine.grammar import Grammar, GrammarRows, GrammarState
from pgcli.engine.model_runner import generate
from pgcli.engine.recorded_step import Recording, Step
from pgcli.engine.sampler import (
    GREEDY,
    OutputVocabulary,
    SamplingParams,
    select_tokens,
)
from pgcli.engine.sequence import Sequence
from pgcli.model.kv_cache import KVCache
from pgcli.model.paligemma import PaliGemma
from pgcli.records import DecodedImage, Item
from tests.support.tiny import RESOLUTION

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


class Tape(TorchDispatchMode):
    """Records operations with their tensors and Python numbers; `replay` runs them again.

    As with a CUDA graph, every operation reads and writes the memory of the recording, Python
    numbers and branches are fixed, and recording itself computes nothing: `undo` restores the
    memory that existed before.
    """

    def __init__(self) -> None:
        super().__init__()
        self._operations: list[tuple[Any, Any, Any, list[Tensor]]] = []
        self._own: set[int] = set()  # storages of tensors created on the tape
        self._before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def __len__(self) -> int:
        return len(self._operations)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        written = written_tensors(function, args, kwargs)
        for storage in (one.untyped_storage() for one in written):
            if storage.data_ptr() not in {*self._own, *self._before}:
                self._before[storage.data_ptr()] = (storage, storage.clone())
        result = function(*args, **kwargs)
        given = {one.untyped_storage().data_ptr() for one in strided_tensors((args, kwargs))}
        made = [] if written else strided_tensors(result)
        places = {one.untyped_storage().data_ptr() for one in made}
        if made and places <= given:
            return result  # views show the same memory at every replay
        self._own |= places
        self._operations.append((function, args, kwargs, made))
        return result

    def undo(self) -> None:
        """Restore the memory that existed before."""
        for storage, before in self._before.values():
            storage.copy_(before)

    def replay(self) -> None:
        for function, args, kwargs, made in self._operations:
            results = strided_tensors(function(*args, **kwargs))
            for one, again in zip(made, results if made else (), strict=True):
                one.copy_(again)


def record_on_tape(step: Step) -> Recording:
    """Replaces `CudaGraphs`."""
    tape = Tape()
    with tape:
        tokens = step()
    tape.undo()
    return Recording(tokens, tape.replay)


def written_tensors(function: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """The tensors that the operation writes."""
    found = []
    for index, argument in enumerate(function._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            found += strided_tensors(value)
    return found


def strided_tensors(result: Any) -> list[Tensor]:
    return [
        one
        for one in tree_leaves(result)
        if isinstance(one, Tensor) and one.layout == torch.strided  # packed weights are constants
    ]


OOM_ERRORS: dict[str, Callable[[], Exception]] = {
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
#: The calls that allocate memory, and how to count their rows.
SITES: dict[str, tuple[type, str, Callable[..., int]]] = {
    "encode": (PaliGemma, "encode", lambda model, pixels_BCRR: len(pixels_BCRR)),
    "prefill": (PaliGemma, "prefill", lambda model, patch_BPD, *_: len(patch_BPD)),
    "insert": (KVCache, "insert", lambda cache, rows, *_: cache.rows + rows),
    "decode": (PaliGemma, "step_logits", lambda model, token_R, cache: cache.rows),
    "branch": (PaliGemma, "score_branches", lambda model, token_BL, *_: len(token_BL)),
}


class LimitedMemory:
    """Raises an OOM error at a site above `rows` rows; `asked` records each call's rows.

    The model's methods run before the error is raised, so that their side effects happen.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, site: str, rows: int, problem: str = "torch"
    ):
        self.rows, self.asked, self.failures = rows, [], 0
        where, name, count = SITES[site]
        real = getattr(where, name)

        def failing(*given: Any, **more: Any) -> Any:
            wanted = count(*given)
            self.asked.append(wanted)
            too_little = self.runs_out(wanted)
            done = None if too_little and where is KVCache else real(*given, **more)
            if too_little:
                self.failures += 1
                raise OOM_ERRORS[problem]()
            return done

        monkeypatch.setattr(where, name, failing)

    def runs_out(self, wanted: int) -> bool:
        return wanted > self.rows


def fresh(loaded: InferenceEngine, batch_size: int = 8) -> InferenceEngine:
    """A new engine around the same model, without batch limits; answers have many lengths."""
    model = loaded.model
    stops = tuple(range(1, model.config.decoder.vocab_size, 6))
    model.config = replace(model.config, stop_tokens=stops)
    return InferenceEngine(
        model, loaded.tokenizer, loaded.preprocessing, label="tiny", batch_size=batch_size
    )


PROMPTS = ("caption en", "is it red?", "how many red circles are there?")


def stream(
    count: int = 7, prompts: abc.Sequence[str] = PROMPTS, choices: tuple[str, ...] = ()
) -> list[tuple[int, DecodedImage]]:
    """Images of noise, each with all prompts."""
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


class Clock:
    """A watch on which every pass takes ten milliseconds; `measured` has each pass."""

    measured: ClassVar[set[tuple[int, float, float]]] = set()

    def __init__(self, device: torch.device):
        self.now = 0.0

    def mark(self) -> float:
        self.now += 10
        return self.now

    def between(self, first: float, second: float) -> float:
        Clock.measured.add((id(self), first, second))
        return second - first
