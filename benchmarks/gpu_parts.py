"""The stage `parts` of benchmarks/gpu.py: parts of a 3b model's passes, each alone.

Each value is the median microseconds of a call, with TFLOP/s or GB/s where operations or bytes are
known; the first values are the machine's limits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.measure import hub_config
from pgcli.bench.roofline import measure_rates
from pgcli.checkpoints.config import parse_config
from pgcli.model.config import VisionConfig
from pgcli.model.cuda.fused import FusedSiglip
from pgcli.model.siglip import SiglipVisionModel

kernels = torch.ops.pgcli
SECONDS = 0.25  # of calls for each part
RECORDED = 10  # calls of a small part in one graph, so that launches are not timed
FLOAT8 = torch.float8_e4m3fn
Values = Iterator[tuple[str, Any]]


def parts(device: torch.device, *, tiny: bool) -> Values:
    """The limits, the vision tower, a prefill and decode steps."""
    torch.manual_seed(0)
    with torch.inference_mode():
        for part in (limits, vision, prefill, steps, float8):
            yield from part(device, tiny)


def drawn(device: torch.device, *shape: int, scale: float = 1.0) -> Tensor:
    return (torch.randn(shape, device=device) * scale).bfloat16()


def timed(
    device: torch.device, run: Callable[[], object], flop: float = 0.0, moved: float = 0.0
) -> dict[str, float] | str:
    """The time of a call with `flop` operations or `moved` bytes, if known."""
    try:
        microseconds = _median(device, run)
    except (RuntimeError, NotImplementedError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    figures = {"us": round(microseconds, 1)}
    if flop:
        figures["TFLOP/s"] = round(flop / microseconds / 1e6, 1)
    if moved:
        figures["GB/s"] = round(moved / microseconds / 1e3)
    return figures


def _median(device: torch.device, run: Callable[[], object]) -> float:
    for _ in range(3):
        run()
    if device.type != "cuda":
        began = perf_counter()
        run()
        return (perf_counter() - began) * 1e6
    torch.cuda.synchronize(device)
    times: list[float] = []
    ends = perf_counter() + SECONDS
    while len(times) < 5 or perf_counter() < ends:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1000)
    return median(times)


def recorded(device: torch.device, run: Callable[[], object]) -> Callable[[], object]:
    """RECORDED calls in a CUDA graph."""
    if device.type != "cuda":
        return run
    run()
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(RECORDED):
            run()
    return graph.replay


def product(device: torch.device, rows: int, width: int, out: int) -> dict[str, float] | str:
    x, weight = drawn(device, rows, width), drawn(device, out, width, scale=width**-0.5)
    return timed(device, partial(F.linear, x, weight), flop=2.0 * rows * width * out)


def limits(device: torch.device, tiny: bool) -> Values:
    config = parse_config(hub_config(1))
    peak = measure_rates(config, 1 if tiny else 16, device, torch.bfloat16).peak
    yield "limit of products, TFLOP/s", round(peak.flops_per_second / 1e12, 1)
    yield "limit of memory, GB/s", round(peak.bytes_per_second / 1e9)


def vision(device: torch.device, tiny: bool) -> Values:
    images, depth, width, inner = (2, 2, 32, 64) if tiny else (128, 27, 1152, 4304)
    rows = images * 256
    yield "vision fc1", product(device, rows, width, inner)
    x, delta, weight = (drawn(device, *shape) for shape in ((rows, width), (rows, width), (width,)))
    norm = partial(kernels.residual_layer_norm, x, delta, weight, weight, 1e-6)
    yield "vision residual and norm", timed(device, norm, moved=4.0 * x.nbytes)
    fc1, bias = drawn(device, inner, width, scale=width**-0.5), drawn(device, inner)
    gelu = partial(kernels.linear_gelu, x, fc1, bias)
    yield "vision fc1 with GELU", timed(device, gelu, flop=2.0 * rows * width * inner)
    config = VisionConfig(
        *(width, depth, inner), num_heads=16 if not tiny else 2, patch_size=14, resolution=224
    )
    tower = SiglipVisionModel(config).to(device, torch.bfloat16).eval()
    for count in (images, 4):
        pixels = drawn(device, count, 3, 224, 224)
        for name, module in (("tower", tower), ("fused tower", FusedSiglip(tower))):
            yield f"vision {name} of {count}", timed(device, partial(module, pixels))


def prefill(device: torch.device, tiny: bool) -> Values:
    rows, width, inner = (64, 64, 128) if tiny else (128 * 261, 2048, 16384)
    yield "prefill qkv", product(device, rows, width, width + 512)
    yield "prefill gate and up", product(device, rows, width, 2 * inner)
    yield "prefill down", product(device, rows, inner, width)
    gate_up = drawn(device, rows, 2 * inner)
    yield "prefill GeGLU", timed(device, partial(kernels.geglu, gate_up), moved=6.0 * rows * inner)
    x, delta = drawn(device, rows, width), drawn(device, rows, width)
    norm = partial(kernels.residual_norm, x, delta, None, torch.ones(width, device=device), 1e-6)
    yield "prefill residual and norm", timed(device, norm, moved=4.0 * x.nbytes)


def steps(device: torch.device, tiny: bool) -> Values:
    width, inner, vocabulary, slots = (64, 128, 2000, 48) if tiny else (2048, 16384, 257216, 384)
    size, newest = 256, slots - 10
    for rows in (4,) if tiny else (1, 16, 64, 256, 512):
        for name, inputs, outputs in (
            *(("qkv", width, width + 512), ("gate and up", width, 2 * inner)),
            *(("down", inner, width), ("head", width, vocabulary)),
        ):
            yield f"step of {rows}, {name}", product(device, rows, inputs, outputs)
        qkv, frequency = drawn(device, rows, 10 * size), torch.rand(size // 2, device=device)
        key, value = (drawn(device, rows, 1, slots, size) for _ in range(2))
        slot = torch.full((rows,), newest, device=device)
        mask = torch.ones(rows, slots, dtype=torch.bool, device=device)
        logits = drawn(device, rows, vocabulary)
        attend = partial(
            kernels.attend, qkv, slot, frequency, key, value, mask, slot, size**-0.5, 0.0
        )
        ends = vocabulary - 64, vocabulary - 1088
        choose = partial(kernels.select_greedy, logits, vocabulary, *ends, 1024, 16)
        for name, call in (("attention", attend), ("choice", choose)):
            yield f"{RECORDED} x step of {rows}, {name}", timed(device, recorded(device, call))


def float8(device: torch.device, tiny: bool) -> Values:
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 9):
        return
    width, inner = 2048, 16384
    for name, inputs, outputs in (("gate and up", width, 2 * inner), ("down", inner, width)):
        for rows in (128 * 261, 256):
            x, weight = drawn(device, rows, inputs).to(FLOAT8), drawn(device, outputs, inputs)
            quantized, unit = weight.to(FLOAT8).T, torch.ones((), device=device)
            by_row = torch.ones(rows, 1, device=device), torch.ones(1, outputs, device=device)
            for how, (scale_x, scale_weight) in {"rows": by_row, "tensor": (unit, unit)}.items():
                scales = {"scale_a": scale_x, "scale_b": scale_weight, "use_fast_accum": True}
                run = partial(torch._scaled_mm, x, quantized, out_dtype=torch.bfloat16, **scales)
                figures = timed(device, run, flop=2.0 * rows * inputs * outputs)
                yield f"float8 {name} of {rows}, scaled by {how}", figures
    gate_up = drawn(device, 128 * 261, 2 * inner)
    call = partial(kernels.geglu_quantized, gate_up)
    yield "float8 GeGLU", timed(device, call, moved=128 * 261 * inner * 5.0)
