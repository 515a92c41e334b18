"""What this machine can do at best: its rate of matrix products, and of memory, measured."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch.nn import functional as F

from pgcli.bench.roofline import Roof
from pgcli.device.select import Stopwatch, free_bytes
from pgcli.model.config import PaliGemmaConfig
from pgcli.model.cpu.packed_linear import PackedLinear, can_pack

MOST_ROWS = 4096  # of a product: more are not faster
LARGE = ("large", 2048, 2048, 16384)
PRODUCT_SECONDS = 0.3  # for each shape, and at least:
LEAST_TIMES = 3
BUFFER_BYTES = 2**30  # far above any cache but a server's last
SHARE_OF_FREE = 0.1


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix product of (rows, inner) by (inner, outer), and the best rate that it ran at."""

    name: str
    dtype: str
    rows: int
    inner: int
    outer: int
    flops_per_second: float


@dataclass(frozen=True, slots=True)
class Machine:
    """The device and its measured rates; a copy's bytes are counted twice, read and written."""

    device: str
    threads: int
    products: tuple[Product, ...]
    copied_bytes_per_second: float
    read_bytes_per_second: float

    @property
    def roof(self) -> Roof:
        """The best of what was measured."""
        return Roof(
            max(product.flops_per_second for product in self.products),
            max(self.copied_bytes_per_second, self.read_bytes_per_second),
        )


def measured(
    config: PaliGemmaConfig, rows: int, device: torch.device, dtype: torch.dtype
) -> Machine:
    """Rates at the shapes that `rows` pictures make in this model, and at a large one."""
    products = tuple(
        Product(name, _name(dtype), m, k, n, _product(m, k, n, device, dtype))
        for name, m, k, n in shapes(config, rows)
    )
    copied, read = _memory(device)
    return Machine(_device(device), torch.get_num_threads(), products, copied, read)


def best(one: Machine, other: Machine) -> Machine:
    """The better of two measurements: a rate that was reached once can be reached."""
    pairs = zip(one.products, other.products, strict=True)
    return replace(
        one,
        products=tuple(max(pair, key=lambda product: product.flops_per_second) for pair in pairs),
        copied_bytes_per_second=max(one.copied_bytes_per_second, other.copied_bytes_per_second),
        read_bytes_per_second=max(one.read_bytes_per_second, other.read_bytes_per_second),
    )


def shapes(config: PaliGemmaConfig, rows: int) -> Iterator[tuple[str, int, int, int]]:
    """Names and sizes of the products in which nearly all work is, for so many pictures."""
    patches = min(MOST_ROWS, rows * config.image_tokens)
    eye, decoder = config.vision, config.decoder
    heads = decoder.num_heads * decoder.head_dim
    keys = 2 * decoder.num_kv_heads * decoder.head_dim
    yield LARGE
    yield "vision qkv", patches, eye.width, 3 * eye.width
    yield "vision fc1", patches, eye.width, eye.mlp_dim
    yield "vision fc2", patches, eye.mlp_dim, eye.width
    yield "decoder qkv", patches, decoder.width, heads + keys
    yield "decoder o", patches, heads, decoder.width
    yield "decoder gate and up", patches, decoder.width, 2 * decoder.mlp_dim
    yield "decoder down", patches, decoder.mlp_dim, decoder.width


def _product(rows: int, inner: int, outer: int, device: torch.device, dtype: torch.dtype) -> float:
    """The best rate, with weights as they are stored or, where that can be, laid out."""
    x = torch.randn(rows, inner, device=device).to(dtype)  # numbers, as zeros take less power
    weight = torch.randn(outer, inner, device=device).to(dtype)
    seconds = _best_seconds(lambda: F.linear(x, weight), device)
    if device.type == "cpu" and can_pack(dtype):
        laid_out = PackedLinear(weight)
        seconds = min(seconds, _best_seconds(lambda: laid_out(x), device))
    return 2 * rows * inner * outer / seconds


def _memory(device: torch.device) -> tuple[float, float]:
    """Bytes per second of a copy, and of a sum, over a buffer too large for caches."""
    size = int(min(BUFFER_BYTES, SHARE_OF_FREE * free_bytes(device))) // 4
    source = torch.ones(size, device=device)
    target = torch.ones_like(source)
    copied = 2 * source.nbytes / _best_seconds(lambda: target.copy_(source), device)
    return copied, source.nbytes / _best_seconds(lambda: source.sum(), device)


@torch.inference_mode()
def _best_seconds(act: Callable[[], object], device: torch.device) -> float:
    watch = Stopwatch(device)
    act()
    best, spent, times = float("inf"), 0.0, 0
    while spent < PRODUCT_SECONDS or times < LEAST_TIMES:
        start = watch.mark()
        act()
        seconds = watch.between(start, watch.mark()) / 1000
        best, spent, times = min(best, seconds), spent + seconds, times + 1
    return best


def _device(device: torch.device) -> str:
    """The device's name: `NVIDIA H200`, or the processor's."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    known = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.+)", known.read_text()) if known.exists() else None
    return found[1] if found else platform.processor() or platform.machine()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
