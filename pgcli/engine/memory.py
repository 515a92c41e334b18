"""Compute the memory that a model needs, and handle out-of-memory errors."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import TypeVar

import torch

from pgcli.device.select import free_bytes
from pgcli.engine.image_cache import MAX_BYTES as MAX_FEATURE_BYTES
from pgcli.errors import NoUsableDevice
from pgcli.model.attention import SCORES
from pgcli.model.config import DecoderConfig, PaliGemmaConfig, VisionConfig
from pgcli.model.cpu.optimize import prefills_in_bf16
from pgcli.model.kv_cache import BUCKET, FEW_ROWS
from pgcli.tasks import Question
from pgcli.text import byte_count

NEW_TOKENS = 256  # assumed before the question is known
TOKENS_PER_PASS = 256  # of a row's candidates: a prefill of the smallest images has more
LONG_PROMPT = 64  # tokens; the maximum expected of a row
USUAL_PROMPT = 16
#: Tokens of a group that is prefilled together: enough for full throughput; a larger pass takes
#: more memory and is not faster per token. GPUs with little memory, which reach their full
#: throughput with fewer tokens, have smaller groups, so that `ENOUGH_ROWS` share a decode step.
GROUP_TOKENS = {"cpu": (2048,), "mps": (4096,), "cuda": (32_768, 8192, 2048)}
ENOUGH_ROWS = 64
MOST_ROWS = {"cpu": 64, "mps": 64, "cuda": 256}
LARGE_PARAMETERS = 10**9
BLOCK_BYTES = 8 * 4 * SCORES  # a block of softcapped scores, float32, in eight versions
ROWS_OF_LARGE_ON_CPU = 16  # more rows are not faster and delay the first
#: The rest is for fragments, and on a CPU for other programs: the OOM killer ends processes that
#: take too much.
SHARE_OF_FREE = {"cpu": 0.6, "mps": 0.6, "cuda": 0.85}
CUDA_BYTES = 2**28  # code of kernels, and workspaces of cuBLAS for two streams
LARGEST_BATCH = 2**14
SMALLER_MODEL = "name a smaller model: `pgcli info MODEL` shows the memory it needs"


def parameters(config: PaliGemmaConfig) -> int:
    """The number of parameters; a tied LM head is counted once."""
    vision, decoder = config.vision, config.decoder
    # Gemma 3's projector has a norm in place of a bias
    projector = vision.width * decoder.width
    projector += decoder.width if config.pooled_side is None else vision.width
    head = 0 if config.tied else decoder.vocab_size * decoder.width
    head += (decoder.width + 1) * (config.vector_size or 0)
    return _vision_parameters(vision) + projector + _decoder_parameters(decoder) + head


def weight_bytes(
    config: PaliGemmaConfig, dtype: torch.dtype, *, device: str = "cpu", quantize: str = "none"
) -> int:
    """The bytes of loaded weights, which are quantized part by part while they are read."""
    decoder, itemsize = config.decoder, dtype.itemsize
    every = parameters(config) * itemsize
    embedding = decoder.vocab_size * decoder.width
    mlps = 3 * decoder.depth * decoder.width * decoder.mlp_dim
    if quantize == "none":
        return every
    if device != "cpu":  # a byte for each weight of the MLPs
        return every - mlps * (itemsize - 1)
    heads = decoder.num_heads + decoder.num_kv_heads
    layers = mlps + 2 * decoder.depth * heads * decoder.head_dim * decoder.width
    kept = every if prefills_in_bf16(dtype) else every - layers * itemsize
    # the head is quantized, and the embedding mapped
    return kept + layers + embedding - embedding * itemsize * (1 if config.tied else 2)


def group_size(config: PaliGemmaConfig, rows: int, tokens: int) -> int:
    """How many rows are prefilled together, in groups of about so many tokens.

    A batch of `rows` is a whole number of groups of about equal size.
    """
    slots = config.image_tokens + config.template_tokens + USUAL_PROMPT
    return ceil(rows / max(1, round(rows * slots / tokens)))


def new_slots(question: Question) -> int:
    """The KV-cache slots that a row needs after its prompt, at most.

    Candidates are read in passes of `TOKENS_PER_PASS` tokens, whatever `max_new_tokens` is.
    """
    return TOKENS_PER_PASS if question.has_choices else question.max_new_tokens


def has_several_prompts(question: Question) -> bool:
    """Whether images have several prompts, for which their features are kept."""
    return question.templates is not None and len(question.templates) > 1


def prompt_slots(config: PaliGemmaConfig) -> int:
    """The KV-cache slots of an image and a long prompt."""
    return config.image_tokens + config.template_tokens + LONG_PROMPT


def row_bytes(
    config: PaliGemmaConfig, itemsize: int, new_tokens: int = NEW_TOKENS, device: str = "cpu"
) -> int:
    """The bytes of one more row of a batch: its slots in the KV cache and its logits.

    During growth, both caches are allocated. On CUDA the old one is small; elsewhere it has half as
    many rows, as they double, or all of them with fewer slots.
    """
    slots = ceil((prompt_slots(config) + new_tokens) / BUCKET) * BUCKET
    old = slots // FEW_ROWS if device == "cuda" else max(slots // 2, slots - BUCKET)
    logits = 3 * 4 * config.decoder.vocab_size
    return cache_bytes(config, itemsize) * (slots + old) + logits


def group_bytes(config: PaliGemmaConfig, itemsize: int, group: int, device: str = "cpu") -> int:
    """The bytes of activations while a group's images are encoded and its prompts prefilled.

    On a CPU, kernels allocate half as much again for float32 blocks.
    """
    decoder = config.decoder
    slots = prompt_slots(config)
    prefill = slots * (8 * decoder.width + 4 * decoder.mlp_dim) * itemsize
    needed = group * max(encode_bytes(config.vision, itemsize), prefill)
    return needed * 3 // 2 if device == "cpu" else needed


def encode_bytes(vision: VisionConfig, itemsize: int) -> int:
    """The activations of one image in the vision tower."""
    return vision.num_positions * (8 * vision.width + 2 * vision.mlp_dim) * itemsize


def batch_bytes(
    config: PaliGemmaConfig,
    itemsize: int,
    rows: int,
    *,
    device: str = "cpu",
    new_tokens: int = NEW_TOKENS,
    group_tokens: int | None = None,
) -> int:
    """The bytes of a batch: KV cache, logits and activations, without the weights.

    Its groups are the smallest of the device if `group_tokens` is None.
    """
    group = group_size(config, rows, group_tokens or GROUP_TOKENS[device][-1]) if rows else 0
    needed = rows * row_bytes(config, itemsize, new_tokens, device)
    needed += group_bytes(config, itemsize, group, device)
    decoder = config.decoder
    if decoder.attn_softcap is not None:
        needed += BLOCK_BYTES
    if device == "cuda":
        # a recorded step keeps its activations and its logits, which are in two dtypes; recordings
        # for other numbers of rows share this memory
        recorded = 6 * decoder.vocab_size + (8 * decoder.width + 4 * decoder.mlp_dim) * itemsize
        needed += CUDA_BYTES + rows * recorded + group * 3 * config.vision.resolution**2
    return needed


def needed_bytes(config: PaliGemmaConfig, itemsize: int, rows: int, *, device: str = "cpu") -> int:
    """The bytes of the weights and a batch, without the 0.3 GB of Python and PyTorch."""
    return parameters(config) * itemsize + batch_bytes(config, itemsize, rows, device=device)


def cache_bytes(config: PaliGemmaConfig, itemsize: int) -> int:
    """The bytes of the keys and values of one slot in all layers."""
    decoder = config.decoder
    return 2 * decoder.depth * decoder.num_kv_heads * decoder.head_dim * itemsize


def largest_batch(config: PaliGemmaConfig, *, itemsize: int, device: str, remaining: int) -> int:
    """How many rows fit into the memory that remains beside the weights; 0 if none does."""
    limit = min(LARGEST_BATCH, max(0, remaining) // row_bytes(config, itemsize, device=device))
    fitting = (
        rows
        for rows in range(limit, 0, -1)
        if batch_bytes(config, itemsize, rows, device=device) <= remaining
    )
    return next(fitting, 0)


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """The memory that is free for batches once a model is loaded."""

    config: PaliGemmaConfig
    itemsize: int
    device: str
    free: int

    def batch_size(self, new_tokens: int = NEW_TOKENS, *, shares_images: bool = False) -> int:
        """How many rows with answers of this length fit into `SHARE_OF_FREE` of the free memory.

        If images have several prompts (`shares_images`), features are kept on a GPU for the next.
        """
        return self.batch(new_tokens, shares_images=shares_images)[0]

    def batch(self, new_tokens: int, *, shares_images: bool = False) -> tuple[int, int]:
        """As `batch_size`, and the tokens of the groups that are prefilled."""
        limit = MOST_ROWS[self.device]
        if self.device == "cpu" and parameters(self.config) > LARGE_PARAMETERS:
            limit = ROWS_OF_LARGE_ON_CPU
        free = SHARE_OF_FREE[self.device] * self.free
        if shares_images and self.device == "cuda":
            free -= MAX_FEATURE_BYTES
        needed = partial(
            batch_bytes, self.config, self.itemsize, device=self.device, new_tokens=new_tokens
        )
        rows, tokens = 1, 0
        for tokens in GROUP_TOKENS[self.device]:
            counts = range(limit, 1, -1)
            rows = next((rows for rows in counts if needed(rows, group_tokens=tokens) <= free), 1)
            if rows >= ENOUGH_ROWS:
                break
        return rows, tokens


def check_weights_fit(
    needed: int, dtype: torch.dtype, device: torch.device, *, remedy: str = SMALLER_MODEL
) -> None:
    """Raise NoUsableDevice if so many bytes of weights do not fit into free memory."""
    free = free_bytes(device)
    if needed > free:
        name = str(dtype).removeprefix("torch.")
        half = "<--dtype bfloat16> takes half; " if dtype == torch.float32 else ""
        raise NoUsableDevice(
            f"the weights take {byte_count(needed)} in {name}, and {device} has "
            f"{byte_count(free)} free",
            hint=f"{half}{remedy}",
        )


def _vision_parameters(config: VisionConfig) -> int:
    width, mlp_dim = config.width, config.mlp_dim
    attention = 4 * (width + 1) * width
    mlp = (width + 1) * mlp_dim + (mlp_dim + 1) * width
    embeddings = (3 * config.patch_size**2 + 1 + config.num_patches) * width
    return config.depth * (attention + mlp + 4 * width) + embeddings + 2 * width


def _decoder_parameters(config: DecoderConfig) -> int:
    width, heads = config.width, config.num_heads + config.num_kv_heads
    attention = 2 * heads * config.head_dim * width
    norms = 4 if config.post_norms else 2
    layer = attention + 3 * width * config.mlp_dim + norms * width
    layer += 2 * config.head_dim * config.qk_norm
    return config.depth * layer + (config.vocab_size + 1) * width


Input = TypeVar("Input")
Result = TypeVar("Result")

#: Parts of the messages of OOM errors that are plain RuntimeErrors.
OOM_MESSAGES = (
    "DefaultCPUAllocator",
    "out of memory",  # the CUDA driver, called by a library, and MPS
    "CUBLAS_STATUS_ALLOC_FAILED",
)
MAX_LOST_AT_START = 3


def is_oom(error: BaseException) -> bool:
    """Whether the error is an out-of-memory error.

    An illegal access or a failed assertion on a GPU is not: the device is unusable after it.
    """
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(part in str(error) for part in OOM_MESSAGES)


class OutOfMemory(Exception):
    """Memory ran out; the memory of the failed call is free again."""


def run_or_free(work: Callable[[], Result], release: Callable[[], object] = lambda: None) -> Result:
    """The result of `work`. Raises OutOfMemory if memory runs out, after a call of `release`."""
    try:
        return work()
    except (RuntimeError, MemoryError) as error:
        if not is_oom(error):
            raise
    # after the `except` block, because its traceback keeps the failed pass's tensors alive
    release()
    gc.collect()
    torch.cuda.empty_cache()
    raise OutOfMemory


@contextmanager
def memory_named(purpose: str, remedy: str) -> Iterator[None]:
    """Convert an OOM error of the block into NoUsableDevice, which names the `purpose`."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_oom(error):
            raise
        raise NoUsableDevice(f"the device has no memory left for {purpose}", hint=remedy) from error


@dataclass(eq=False, slots=True)
class BatchLimits:
    """The most `rows` at once, halved when a batch of so many runs out of memory.

    `failed` is the largest batch that did, 0 if none has. With `is_fixed`, as in a benchmark,
    batches never shrink.
    """

    rows: int = sys.maxsize
    failed: int = 0
    is_fixed: bool = False
    _has_answered: bool = False
    _lost: int = 0

    def shrink(self, rows: int) -> None:
        """Halve the limit, after a batch of `rows`. Raises NoUsableDevice if it is fixed."""
        if self.is_fixed:
            raise NoUsableDevice(
                f"the device has no memory left for {rows} rows at once",
                hint="use a smaller <--batch-size=>",
            )
        if rows > 1:
            self.failed = max(self.failed, rows)
            self.rows = min(self.rows, rows // 2)

    def count_row(self, *, is_lost: bool) -> None:
        """Count an answered row, or one that is lost because it runs out of memory alone.

        Raises NoUsableDevice if the first `MAX_LOST_AT_START` rows are all lost.
        """
        if not is_lost:
            self._has_answered = True
            return
        self._lost += 1
        if self._lost >= MAX_LOST_AT_START and not self._has_answered:
            raise NoUsableDevice(
                "the device has no memory left for even one row",
                hint="free some memory, or use <--dtype bfloat16>, a smaller model or another "
                "<--device=>",
            )

    def summary(self) -> str:
        """The reduced limit as text; empty if memory has not run out in this process."""
        return f"{self.rows} rows at once instead of {self.failed}" if self.failed else ""


def run_in_chunks(
    work: Callable[[Sequence[Input]], Sequence[Result]], inputs: Sequence[Input]
) -> Iterator[Result | None]:
    """The results of `work` for each input, in order; chunks are halved on OOM.

    The result is None for an input that runs out of memory alone.
    """
    remaining = list(inputs)
    size = len(remaining)
    while remaining:
        chunk = remaining[:size]
        try:
            yield from run_or_free(partial(work, chunk))
        except OutOfMemory:
            if len(chunk) > 1:
                size = len(chunk) // 2
                continue
            yield None
        del remaining[: len(chunk)]
