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
from pgcli.model.cpu.packed_linear import PackedLinearKernel
from pgcli.model.cpu.processor import works

MAX_ROWS = 4096  # of a product; larger products are not faster
LARGE = (2048, 16384)
LARGE_ROWS = {"cpu": 512}  # 2048 rows take four times as long at the same rate
PRODUCT_SECONDS = 0.15  # per shape; a slower product is measured once
BUFFER_BYTES = 2**30  # larger than any cache except a server's last-level cache
SHARE_OF_FREE = 0.1


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


def highest_rates(first: MachineRates, second: MachineRates) -> MachineRates:
    """The higher rates of two measurements."""
    flops = max(first.peak.flops_per_second, second.peak.flops_per_second)
    bytes_per_second = max(first.peak.bytes_per_second, second.peak.bytes_per_second)
    return replace(first, peak=PeakRates(flops, bytes_per_second))


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
