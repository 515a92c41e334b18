"""Measures the peak rates of this machine: matrix products and memory bandwidth."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch.nn import functional as F

from pgcli.bench.roofline import PeakRates
from pgcli.device.select import free_bytes
from pgcli.device.stopwatch import Stopwatch
from pgcli.model.config import PaliGemmaConfig
from pgcli.model.cpu.packed_linear import PackedLinearKernel, can_pack

MAX_ROWS = 4096  # of a product; more rows are not faster
LARGE = ("large", 2048, 2048, 16384)
PRODUCT_SECONDS = 0.3  # per shape
MIN_REPEATS = 3
BUFFER_BYTES = 2**30  # larger than any cache except a server's last-level cache
SHARE_OF_FREE = 0.1


@dataclass(frozen=True, slots=True)
class MatmulRate:
    """A matrix product of (rows, inner) by (inner, outer), and its highest rate."""

    name: str
    dtype: str
    rows: int
    inner: int
    outer: int
    flops_per_second: float


@dataclass(frozen=True, slots=True)
class MachineRates:
    """The device and its measured rates; copied bytes count as read and as written."""

    device: str
    threads: int
    products: tuple[MatmulRate, ...]
    copied_bytes_per_second: float
    read_bytes_per_second: float

    @property
    def peak(self) -> PeakRates:
        """The highest of the measured rates."""
        return PeakRates(
            max(product.flops_per_second for product in self.products),
            max(self.copied_bytes_per_second, self.read_bytes_per_second),
        )


def measure_rates(
    config: PaliGemmaConfig, rows: int, device: torch.device, dtype: torch.dtype
) -> MachineRates:
    """The rates for the model's shapes with `rows` images, and for one large shape."""
    products = tuple(
        MatmulRate(name, _name(dtype), m, k, n, _product(m, k, n, device, dtype))
        for name, m, k, n in shapes(config, rows)
    )
    copied, read = _memory(device)
    return MachineRates(_device(device), torch.get_num_threads(), products, copied, read)


def highest_rates(one: MachineRates, other: MachineRates) -> MachineRates:
    """The higher of each pair of rates."""
    pairs = zip(one.products, other.products, strict=True)
    return replace(
        one,
        products=tuple(max(pair, key=lambda product: product.flops_per_second) for pair in pairs),
        copied_bytes_per_second=max(one.copied_bytes_per_second, other.copied_bytes_per_second),
        read_bytes_per_second=max(one.read_bytes_per_second, other.read_bytes_per_second),
    )


def shapes(config: PaliGemmaConfig, rows: int) -> Iterator[tuple[str, int, int, int]]:
    """Names and sizes of the products that take nearly all time, for `rows` images."""
    patches = min(MAX_ROWS, rows * config.image_tokens)
    tower, decoder = config.vision, config.decoder
    heads = decoder.num_heads * decoder.head_dim
    keys = 2 * decoder.num_kv_heads * decoder.head_dim
    yield LARGE
    yield "vision qkv", patches, tower.width, 3 * tower.width
    yield "vision fc1", patches, tower.width, tower.mlp_dim
    yield "vision fc2", patches, tower.mlp_dim, tower.width
    yield "decoder qkv", patches, decoder.width, heads + keys
    yield "decoder o", patches, heads, decoder.width
    yield "decoder gate and up", patches, decoder.width, 2 * decoder.mlp_dim
    yield "decoder down", patches, decoder.mlp_dim, decoder.width


def _product(rows: int, inner: int, outer: int, device: torch.device, dtype: torch.dtype) -> float:
    """The highest rate, with plain weights or, if supported, packed ones."""
    x = torch.randn(rows, inner, device=device).to(dtype)  # numbers, as zeros take less power
    weight = torch.randn(outer, inner, device=device).to(dtype)
    seconds = _min_seconds(lambda: F.linear(x, weight), device)
    if device.type == "cpu" and can_pack(dtype):
        laid_out = PackedLinearKernel(weight)
        seconds = min(seconds, _min_seconds(lambda: laid_out(x), device))
    return 2 * rows * inner * outer / seconds


def _memory(device: torch.device) -> tuple[float, float]:
    """Bytes per second of a copy, and of a sum, over a buffer larger than the caches."""
    size = int(min(BUFFER_BYTES, SHARE_OF_FREE * free_bytes(device))) // 4
    source = torch.ones(size, device=device)
    target = torch.ones_like(source)
    copied = 2 * source.nbytes / _min_seconds(lambda: target.copy_(source), device)
    return copied, source.nbytes / _min_seconds(lambda: source.sum(), device)


@torch.inference_mode()
def _min_seconds(act: Callable[[], object], device: torch.device) -> float:
    stopwatch = Stopwatch(device)
    act()
    fastest, spent, repeats = float("inf"), 0.0, 0
    while spent < PRODUCT_SECONDS or repeats < MIN_REPEATS:
        start = stopwatch.mark()
        act()
        seconds = stopwatch.between(start, stopwatch.mark()) / 1000
        fastest, spent, repeats = min(fastest, seconds), spent + seconds, repeats + 1
    return fastest


def _device(device: torch.device) -> str:
    """The device's name: `NVIDIA H200`, or the processor's."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    known = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.+)", known.read_text()) if known.exists() else None
    return found[1] if found else platform.processor() or platform.machine()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
