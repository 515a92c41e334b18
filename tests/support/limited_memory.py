"""Engines with the tiny model, images of noise, and simulated out-of-memory errors."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from pgcli.engine.engine import InferenceEngine
from pgcli.model.kv_cache import KVCache
from pgcli.model.paligemma import PaliGemma
from pgcli.records import DecodedImage, Item
from tests.support.tiny import RESOLUTION

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
    count: int = 7, prompts: Sequence[str] = PROMPTS, choices: tuple[str, ...] = ()
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
