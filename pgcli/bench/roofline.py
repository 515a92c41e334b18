"""The roofline model: FLOP and bytes of every stage, the machine's peak rates, and the least time.

A multiply-add is 2 FLOP. Bytes are the weights, read once a pass, and the KV cache; activations are
omitted, as if they stayed in the processor's caches. All times are lower bounds: computing and
reading overlap within a pass, and passes are sequential.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn import functional as F

from pgcli.device.select import Stopwatch, free_bytes
from pgcli.engine.memory import cache_bytes
from pgcli.model.config import DecoderConfig, PaliGemmaConfig
from pgcli.model.cpu.linear_kernels import PackedLinearKernel
from pgcli.model.cpu.processor import works

MAX_ROWS = 4096  # of a product; larger products are not faster
LARGE = (2048, 16384)
LARGE_ROWS = {"cpu": 512}  # 2048 rows take four times as long at the same rate
PRODUCT_SECONDS = 0.15  # per shape; a slower product is measured once
BUFFER_BYTES = 2**30  # larger than any cache except a server's last-level cache
SHARE_OF_FREE = 0.1


@dataclass(frozen=True, slots=True)
class PeakRates:
    """The peak rates of a machine."""

    flops_per_second: float
    bytes_per_second: float


@dataclass(frozen=True, slots=True)
class PassCost:
    """The cost of a pass."""

    flops: int
    bytes: int

    def seconds(self, rates: PeakRates) -> float:
        """The least time: the larger of computing and reading, which overlap."""
        return max(self.flops / rates.flops_per_second, self.bytes / rates.bytes_per_second)


@dataclass(frozen=True, slots=True)
class Stages:
    """Seconds by stage: image encoding, prefill, and decoding after the first token."""

    vision: float
    prefill: float
    decode: float

    @property
    def total(self) -> float:
        return self.vision + self.prefill + self.decode


@dataclass(frozen=True, slots=True)
class Workload:
    """Rows of one image and one prompt each, with the lengths of prompts and answers."""

    batch: int
    prompt_tokens: int
    lengths: Sequence[int]
    itemsize: int


def limit(config: PaliGemmaConfig, work: Workload, rates: PeakRates) -> Stages:
    """The least seconds for the workload with full batches."""
    rows, itemsize = min(work.batch, len(work.lengths)), work.itemsize
    passes = len(work.lengths) / rows
    slots = config.image_tokens + work.prompt_tokens
    read = prefill(config, rows, work.prompt_tokens, itemsize)
    decode = 0.0
    for number in range(1, max(work.lengths)):
        alive = sum(length > number for length in work.lengths)
        decode += alive / rows * step(config, rows, slots + number, itemsize).seconds(rates)
    return Stages(
        passes * vision(config, rows, itemsize).seconds(rates), passes * read.seconds(rates), decode
    )


def vision(config: PaliGemmaConfig, rows: int, itemsize: int) -> PassCost:
    """The cost of the vision tower and the projector for `rows` images."""
    tower, patches = config.vision, config.vision.num_patches
    layers = tower.depth * (4 * tower.width**2 + 2 * tower.width * tower.mlp_dim)
    weights = layers + tower.width * (3 * tower.patch_size**2 + config.decoder.width)
    attention = 4 * patches**2 * tower.width * tower.depth
    return PassCost(rows * (2 * patches * weights + attention), weights * itemsize)


def prefill(config: PaliGemmaConfig, rows: int, prompt_tokens: int, itemsize: int) -> PassCost:
    """The cost of the decoder over images and prompts, and of the first token's logits."""
    decoder, slots = config.decoder, config.image_tokens + prompt_tokens
    keys, others = _key_value_weights(decoder), _other_weights(decoder)
    full = decoder.depth - 1  # the last layer needs all keys and values, but one slot's output
    flops = 2 * slots * (decoder.depth * keys + full * others) + 2 * others
    flops += _attention(decoder, full * slots**2 + slots)
    return PassCost(
        rows * (flops + 2 * _lm_head_params(decoder)), _decoder_params(decoder) * itemsize
    )


def step(config: PaliGemmaConfig, rows: int, slots: int, itemsize: int) -> PassCost:
    """The cost of one more token for every row, with `slots` slots each, including its own.

    Sliding windows are ignored: at every resolution they exclude less than a hundredth of a row.
    """
    decoder = config.decoder
    flops = 2 * _decoder_params(decoder) + _attention(decoder, decoder.depth * slots)
    # reads the cache, writes the new slot, writes and reads the logits
    moved = rows * (cache_bytes(config, itemsize) * (slots + 1) + 2 * itemsize * decoder.vocab_size)
    return PassCost(rows * flops, _decoder_params(decoder) * itemsize + moved)


def _key_value_weights(decoder: DecoderConfig) -> int:
    """The number of weights of a layer's key and value projections."""
    return 2 * decoder.width * decoder.num_kv_heads * decoder.head_dim


def _other_weights(decoder: DecoderConfig) -> int:
    """The number of a layer's other weights: query and output projections, and the MLP."""
    heads = decoder.num_heads * decoder.head_dim
    return 2 * decoder.width * heads + 3 * decoder.width * decoder.mlp_dim


def _lm_head_params(decoder: DecoderConfig) -> int:
    return decoder.width * decoder.vocab_size


def _decoder_params(decoder: DecoderConfig) -> int:
    layer = _key_value_weights(decoder) + _other_weights(decoder)
    return decoder.depth * layer + _lm_head_params(decoder)


def _attention(decoder: DecoderConfig, pairs: int) -> int:
    """FLOP of the scores and values of `pairs` pairs of a query and a key, in all layers."""
    return 4 * pairs * decoder.num_heads * decoder.head_dim


@dataclass(frozen=True, slots=True)
class MachineRates:
    """The device and its highest measured rates."""

    device: str
    threads: int
    peak: PeakRates


def measure_rates(
    config: PaliGemmaConfig, rows: int, device: torch.device, dtype: torch.dtype
) -> MachineRates:
    """The highest rates, over the products of the model with `rows` images and a large one."""
    large = (LARGE_ROWS.get(device.type, 2048), *LARGE)
    measured = [large, *shapes(config, rows)]
    flops = max(_product(*shape, device, dtype) for shape in measured)
    return MachineRates(_device(device), torch.get_num_threads(), PeakRates(flops, _memory(device)))


def shapes(config: PaliGemmaConfig, rows: int) -> Iterator[tuple[int, int, int]]:
    """The rows and widths of the products that take nearly all the time, for `rows` images."""
    patches = min(MAX_ROWS, rows * config.image_tokens)
    tower, decoder = config.vision, config.decoder
    heads = decoder.num_heads * decoder.head_dim
    keys = 2 * decoder.num_kv_heads * decoder.head_dim
    yield patches, tower.width, 3 * tower.width
    yield patches, tower.width, tower.mlp_dim
    yield patches, tower.mlp_dim, tower.width
    yield patches, decoder.width, heads + keys
    yield patches, heads, decoder.width
    yield patches, decoder.width, 2 * decoder.mlp_dim
    yield patches, decoder.mlp_dim, decoder.width


def _product(rows: int, inner: int, outer: int, device: torch.device, dtype: torch.dtype) -> float:
    """The highest rate, with plain weights or, if supported, packed ones."""
    x = torch.randn(rows, inner, device=device).to(dtype)  # random, since zeros take less power
    weight = torch.randn(outer, inner, device=device).to(dtype)
    seconds = _min_seconds(lambda: F.linear(x, weight), device)
    if device.type == "cpu" and works(PackedLinearKernel, dtype):
        laid_out = PackedLinearKernel(weight)
        seconds = min(seconds, _min_seconds(lambda: laid_out(x), device))
    return 2 * rows * inner * outer / seconds


def _memory(device: torch.device) -> float:
    """Bytes per second of a copy, or of a sum if that is faster, of more data than caches hold.

    Copied bytes count as read and as written.
    """
    size = int(min(BUFFER_BYTES, SHARE_OF_FREE * free_bytes(device))) // 4
    source = torch.ones(size, device=device)
    target = torch.ones_like(source)
    copied = 2 * source.nbytes / _min_seconds(lambda: target.copy_(source), device)
    return max(copied, source.nbytes / _min_seconds(lambda: source.sum(), device))


@torch.inference_mode()
def _min_seconds(act: Callable[[], object], device: torch.device) -> float:
    stopwatch = Stopwatch(device)
    act()
    fastest, spent = float("inf"), 0.0
    while spent < PRODUCT_SECONDS:
        start = stopwatch.mark()
        act()
        seconds = stopwatch.between(start, stopwatch.mark()) / 1000
        fastest, spent = min(fastest, seconds), spent + seconds
    return fastest


def _device(device: torch.device) -> str:
    """The device's name: `NVIDIA H200`, or the processor's."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    known = Path("/proc/cpuinfo")
    match = re.search(r"model name\s*: (.+)", known.read_text()) if known.exists() else None
    return match[1] if match else platform.processor() or platform.machine()
