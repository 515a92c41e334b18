"""Stages of benchmarks/gpu.py without an engine: versions, parity of layers, rates of products."""

from __future__ import annotations

import platform
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu_bench import Setup
from pgcli.bench.peak_rates import _memory, _min_seconds
from pgcli.checkpoints.config import parse_config
from pgcli.model.attention import softcapped_attention
from pgcli.model.config import PaliGemmaConfig
from pgcli.model.cuda.fused_gemma import fuse_decoder
from pgcli.model.paligemma import PaliGemma
from pgcli.model.quantized.gated_mlp import QuantizedLinear
from pgcli.model.quantized.quantize import FLOAT8, quantize_per_row

Values = Iterator[tuple[str, Any]]
PACKAGES = ("torch", "triton", "transformers", "numpy", "pillow")


def versions(setup: Setup) -> Values:
    """Versions, the device, and which attention backends run."""
    yield "python", platform.python_version()
    for name in PACKAGES:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            yield name, "not installed"
    yield "cuda", torch.version.cuda
    if setup.device.type == "cuda":
        about = torch.cuda.get_device_properties(setup.device)
        yield "device", [about.name, about.total_memory, about.multi_processor_count]
    backends = (
        *(SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION),
        *(SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH),
    )
    for name, size, heads, queries, has_mask in (
        ("vision", 72, 16, 272, False),
        ("prefill", 256, 1, 8 * 272, False),
        ("prefill with padding", 256, 1, 8 * 272, True),
    ):
        q = torch.randn(4, heads, queries, size, device=setup.device, dtype=setup.dtype)
        mask = torch.ones(4, 1, 1, 272, dtype=torch.bool, device=setup.device) if has_mask else None
        yield f"attention of {name}", dict(_backends(q, mask, backends))
    q = torch.randn(4, 4, 2 * 272, 256, device=setup.device, dtype=setup.dtype)
    key = q[:, :, :272]
    run = partial(softcapped_attention, q, key, key, None, 0.0625, 50.0)
    yield "softcapped attention of prefill", {"default": 1000 * _min_seconds(run, setup.device)}


def _backends(q: torch.Tensor, mask: Any, backends: tuple[SDPBackend, ...]) -> Values:
    """Milliseconds of each backend that runs, and of the default."""
    key = q[:, :, :272]
    run = partial(F.scaled_dot_product_attention, q, key, key, attn_mask=mask)
    yield "default", 1000 * _min_seconds(run, q.device)
    for backend in backends:
        try:
            with warnings.catch_warnings(), sdpa_kernel(backend):
                warnings.simplefilter("ignore")
                yield backend.name, 1000 * _min_seconds(run, q.device)
        except RuntimeError:
            yield backend.name, "does not run"


def parity(setup: Setup) -> Values:
    """Relative differences of the logits of a layer from float64; then the GPU tests."""
    for generation in (1, 2):
        config = setup.config(generation, num_hidden_layers=1)
        reference = setup.model(config, torch.float64)
        expected = _logits(reference)
        for dtype in (torch.float32, torch.bfloat16):
            model = setup.model(config, dtype)
            for one, other in zip(model.parameters(), reference.parameters(), strict=True):
                one.copy_(other)
            name = f"generation {generation}, {str(dtype).removeprefix('torch.')}"
            plain = _logits(model)
            fuse_decoder(model)
            fused = _logits(model)
            yield (
                name,
                {
                    "plain": _distance(plain, expected),
                    "fused": _distance(fused, expected),
                    "fused from plain": _distance(fused, plain),
                },
            )
    if not setup.tiny:
        command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider"]
        done = subprocess.run([*command, "tests"], capture_output=True, text=True, check=False)
        yield "tests", (done.stdout.strip().splitlines() or [done.stderr[-200:]])[-1]


@torch.inference_mode()
def _logits(model: PaliGemma) -> torch.Tensor:
    """The logits of a prefill of five rows and of three steps."""
    config, weight = model.config, model.projector.weight
    generator = torch.Generator().manual_seed(1)
    shape = (5, config.image_tokens, config.decoder.width)
    patch_BPD = torch.randn(shape, generator=generator).to(weight)
    token_BT = torch.arange(80, device=weight.device).view(5, 16)
    cache = model.kv_cache(5)
    found = [model.prefill(patch_BPD, token_BT, None, cache)]
    found += [model.decode_step(token_BT[:, step].clone(), cache) for step in range(3)]
    return torch.stack(found).double()


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).norm() / other.norm())


def roofs(setup: Setup) -> Values:
    """Rates of products and of memory: TFLOP/s and TB/s."""
    large = 256 if setup.tiny else 8192
    shapes = {f"{large} cubed": (large, large, large)}
    for generation in (1, 2):
        config = parse_config(setup.config(generation))
        for rows in row_counts(setup):
            for name, (inner, outer) in products_of(config).items():
                shapes[f"generation {generation}, {name}, {rows} rows"] = (rows, inner, outer)
        for rows in row_counts(setup)[:2]:  # of a step
            head = (rows, config.decoder.width, config.decoder.vocab_size)
            shapes[f"generation {generation}, LM head, {rows} rows"] = head
    for name, (rows, inner, outer) in shapes.items():
        x = torch.randn(rows, inner, device=setup.device, dtype=setup.dtype)
        weight = torch.randn(outer, inner, device=setup.device, dtype=setup.dtype)
        yield name, _rate(partial(F.linear, x, weight), rows * inner * outer, setup)
    yield "memory", _memory(setup.device) / 1e12


def row_counts(setup: Setup) -> tuple[int, ...]:
    """The rows of products: of steps of two batches, and of two prefills."""
    return (4,) if setup.tiny else (64, 256, 17_408, 34_816)


def products_of(config: PaliGemmaConfig) -> dict[str, tuple[int, int]]:
    """Input and output widths of the products of layers, and of the projector."""
    tower, decoder = config.vision, config.decoder
    heads = decoder.num_heads * decoder.head_dim
    return {
        "vision qkv": (tower.width, 3 * tower.width),
        "vision out": (tower.width, tower.width),
        "vision fc1": (tower.width, tower.mlp_dim),
        "vision fc2": (tower.mlp_dim, tower.width),
        "projector": (tower.width, decoder.width),
        "qkv": (decoder.width, heads + 2 * decoder.num_kv_heads * decoder.head_dim),
        "o": (heads, decoder.width),
        "gate and up": (decoder.width, 2 * decoder.mlp_dim),
        "down": (decoder.mlp_dim, decoder.width),
    }


def _rate(run: Callable[[], Any], products: int, setup: Setup) -> float:
    """TFLOP/s of a call with so many multiplications and additions."""
    return 2 * products / _min_seconds(run, setup.device) / 1e12


def quantized_rates(setup: Setup, rows: int, inner: int, outer: int) -> Values:
    """TFLOP/s of one product: in the model's dtype, as the model does in 8 bits, and otherwise."""
    x = torch.randn(rows, inner, device=setup.device, dtype=setup.dtype)
    weight = torch.randn(outer, inner, device=setup.device, dtype=setup.dtype)
    acts: dict[str, Callable[[], Any]] = {"exact": partial(F.linear, x, weight)}
    quantized, scale = quantize_per_row(x, FLOAT8)
    linear = QuantizedLinear(weight.bfloat16()).to(setup.device)
    acts["fp8"] = partial(linear, quantized, scale)
    acts["fp8, summed in float32"] = partial(
        *(torch._scaled_mm, quantized, linear.quantized_ND.T, scale, linear.scale_N[None]),
        out_dtype=torch.bfloat16,
    )
    for name, act in acts.items():
        try:
            yield name, _rate(act, rows * inner * outer, setup)
        except RuntimeError as problem:
            yield name, f"failed: {next(iter(str(problem).splitlines()), '')}"
