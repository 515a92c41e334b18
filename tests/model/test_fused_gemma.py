"""The fused model computes the same as the plain one: its operators, and their Triton kernels.

The kernels run on a GPU or, where Triton is installed, in its interpreter.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CalledProcessError

import pytest
import torch
from torch import Tensor

from pgcli.checkpoints import weights
from pgcli.checkpoints.config import read_config
from pgcli.engine.tokenizer import left_pad
from pgcli.model.cuda import fused, operators, optimize, plain
from pgcli.model.cuda.fused import FusedGemma
from pgcli.model.cuda.optimize import fuse, optimize_part_for_cuda
from pgcli.model.paligemma import PaliGemma
from tests.support import tiny_gemma3
from tests.support.kernels import interpreted_kernels
from tests.support.tiny import RESOLUTION, normal

PROMPTS = [[2, 300, 108], [2, 301, 302, 303, 304, 108], [2, 108]]
#: Bounds of relative differences: exact up to the order of sums, and to single roundings.
BOUNDS = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 4e-2}
kernels = pytest.fixture(interpreted_kernels, scope="module")
#: The scales of queries and keys with heads of 32, and epsilon.
NORM = (*1 + normal(2, 32, seed=5, dtype=torch.float32) / 4, 1e-6)
NO_NORM = (None, None, 0.0)
FLOATS = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


def close(one: Tensor, other: Tensor, dtype: torch.dtype) -> None:
    assert one.dtype == other.dtype
    one, other = one.double(), other.double()
    finite = other.isfinite()
    assert torch.equal(finite, one.isfinite())
    distance = (one - other)[finite].norm() / other[finite].norm().clamp(min=1e-6)
    assert distance < BOUNDS[dtype], distance


# --- the whole decoder


def logits_of(model: PaliGemma, steps: int, *, fixed_shape: bool) -> Tensor:
    """The logits of a ragged prefill and further steps; a row leaves between two steps."""
    dtype = model.projector.weight.dtype
    patch_BPD = normal(3, model.config.image_tokens, model.config.decoder.width).to(dtype)
    token_BT, is_real_BT = left_pad(PROMPTS)
    cache = model.kv_cache(4, fixed_shape=fixed_shape)
    found = [model.prefill(patch_BPD, token_BT, is_real_BT, cache)]
    for step in range(steps):
        if step == 2:
            cache.remove([0])
        found.append(model.decode_step(token_BT.new_tensor([300, 400 + step, 9]), cache))
    return torch.cat(found)


@pytest.fixture(scope="module")
def tiny3(tmp_path_factory) -> Path:
    """Gemma 3: normed queries and keys, two rotations, prompts that see only what is before."""
    return tiny_gemma3.write_checkpoint(tmp_path_factory.mktemp("tiny3") / "model", window=6)


@pytest.fixture(params=["tiny", "tiny2", "tiny3"])
def folder(request) -> Path:
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("fixed_shape", [True, False])
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@torch.inference_mode()
def test_the_fused_decoder_gives_the_logits_of_the_plain_one(folder, dtype, fixed_shape):
    model = weights.load_paligemma(folder, read_config(folder), dtype=dtype)
    expected = logits_of(model, 4, fixed_shape=fixed_shape)
    fuse(model)
    close(logits_of(model, 4, fixed_shape=fixed_shape), expected, dtype)


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@torch.inference_mode()
def test_the_fused_tower_gives_the_features_of_the_plain_one(folder, dtype, monkeypatch):
    monkeypatch.setattr(fused, "MIN_IMAGES", 2)
    model = weights.load_paligemma(folder, read_config(folder), dtype=dtype)
    pixels_BCRR = normal(2, 3, RESOLUTION, RESOLUTION, dtype=dtype)
    expected = model.encode(pixels_BCRR)
    fuse(model)
    close(model.encode(pixels_BCRR), expected, dtype)


@pytest.mark.slow
@torch.inference_mode()
def test_interpreted_kernels_give_the_logits_of_the_plain_decoder(folder, kernels):
    model = weights.load_paligemma(folder, read_config(folder), dtype=torch.float32)
    expected = logits_of(model, 1, fixed_shape=True)
    fuse(model)
    with torch.library._scoped_library("pgcli", "IMPL") as library:
        for name in operators.OPERATORS:
            library.impl(name, getattr(kernels, name), "CPU")
        close(logits_of(model, 1, fixed_shape=True), expected, torch.float32)


def test_a_decoder_with_wrong_or_missing_kernels_stays_plain(tiny, monkeypatch):
    def load() -> PaliGemma:
        optimize.kernel_problem.cache_clear()
        model = weights.load_paligemma(tiny, read_config(tiny), dtype=torch.float32)
        for part in model.parts():
            optimize_part_for_cuda(model, part)
        return model

    assert isinstance(load().decoder, FusedGemma)

    def failing(error: Exception) -> Callable[..., Tensor]:
        def fails(*given: Tensor) -> Tensor:
            raise error

        return fails

    for kernel, reason in (
        (lambda x: x[..., : x.shape[-1] // 2] * 2, "wrong results of geglu"),
        (failing(RuntimeError("Failed to find C compiler")), "C compiler.*apt-get install gcc"),
        (failing(CalledProcessError(1, "gcc")), "'gcc' returned.*apt-get install gcc"),
    ):
        with torch.library._scoped_library("pgcli", "IMPL") as library:
            library.impl("geglu", kernel, "CPU")
            with pytest.warns(UserWarning, match=f"fused kernels.*{reason}"):
                model = load()
        assert not isinstance(model.decoder, FusedGemma)
    with torch.library._scoped_library("pgcli", "IMPL") as library:
        launch = RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered")
        library.impl("geglu", failing(launch), "CPU")
        with pytest.raises(RuntimeError, match="illegal memory access"):
            load()
    optimize.kernel_problem.cache_clear()


@pytest.mark.slow
def test_interpreted_kernels_pass_the_check_of_both_generations(folder, kernels):
    """The check runs attention with split slots and without, in the model's own shapes."""
    config, programs = read_config(folder), []

    def attend(*given: Tensor) -> Tensor:
        programs.append(len(given[0]) * config.decoder.num_kv_heads)
        return kernels.attend(*given)

    optimize.kernel_problem.cache_clear()
    with torch.library._scoped_library("pgcli", "IMPL") as library:
        for name in operators.OPERATORS:
            library.impl(name, attend if name == "attend" else getattr(kernels, name), "CPU")
        assert optimize.kernel_problem(torch.device("cpu"), torch.float32, config) == ""
    optimize.kernel_problem.cache_clear()
    most = sys.modules[kernels.attend.__module__].PROGRAMS
    assert min(programs) < most // 2 < max(programs)


# --- each kernel beside its plain version


@FLOATS
@pytest.mark.parametrize("has_post", [False, True])
def test_norms(kernels, dtype, has_post):
    x, delta = normal(3, 2, 48, dtype=dtype), normal(3, 2, 48, seed=2, dtype=dtype)
    scale = 1 + normal(48, seed=3, dtype=torch.float32) / 10
    post = 1 + normal(48, seed=4, dtype=torch.float32) / 10 if has_post else None
    close(kernels.rms_norm(x, scale, 1e-6), operators.rms_norm(x, scale, 1e-6), dtype)
    for one, other in zip(
        kernels.residual_norm(x, delta, post, scale, 1e-6),
        plain.residual_norm(x, delta, post, scale, 1e-6),
        strict=True,
    ):
        close(one, other, dtype)


@FLOATS
def test_layer_norm_of_a_sum(kernels, dtype):
    x, delta = normal(3, 2, 48, dtype=dtype) + 5, normal(3, 2, 48, seed=2, dtype=dtype)
    weight, bias = normal(48, seed=3, dtype=dtype), normal(48, seed=4, dtype=dtype)
    found = kernels.residual_layer_norm(x, delta, weight, bias, 1e-6)
    expected = plain.residual_layer_norm(x, delta, weight, bias, 1e-6)
    for one, other in zip(found, expected, strict=True):
        close(one, other, dtype)


@FLOATS
def test_geglu_and_softcap(kernels, dtype):
    x = normal(3, 2, 2 * 72, dtype=dtype) * 3
    close(kernels.geglu(x), plain.geglu(x), dtype)
    close(kernels.softcap(x, 1.5), operators.softcap(x, 1.5), torch.float32)


@pytest.mark.parametrize(
    ("dtype", "cap", "rows", "kv_heads", "groups", "programs", "norm"),
    [
        (torch.float32, 0.0, 3, 1, 8, 256, NO_NORM),
        (torch.bfloat16, 0.7, 2, 2, 2, 256, NO_NORM),
        (torch.float32, 0.7, 2, 2, 2, 1, NO_NORM),  # without split slots
        (torch.bfloat16, 0.0, 2, 1, 4, 1, NO_NORM),
        (torch.float32, 0.0, 3, 2, 3, 256, NORM),
        (torch.bfloat16, 0.0, 2, 2, 2, 1, NORM),
    ],
)
def test_decode_attention(kernels, monkeypatch, dtype, cap, rows, kv_heads, groups, programs, norm):
    """Rows of all lengths, with padding, and later slots that hold other values."""
    monkeypatch.setattr(kernels.attention, "PROGRAMS", programs)
    size, slots = 32, 150
    qkv_BX = normal(rows, (groups + 2) * kv_heads * size, dtype=dtype)
    slot_B = torch.tensor([0, 70, 130][-rows:])
    mask_BS = torch.arange(slots) <= slot_B[:, None]
    mask_BS &= (torch.arange(slots) % 5 != 1) | (torch.arange(slots) == slot_B[:, None])
    frequency = 1 / 1e4 ** (torch.arange(0, size, 2) / size)
    memory = normal(2, rows, kv_heads, slots, size, seed=2, dtype=dtype)
    again = memory.clone()
    common = (mask_BS, slot_B, 0.2, cap, *norm)
    found = kernels.attend(qkv_BX, slot_B + 1, frequency, memory[0], memory[1], *common)
    expected = plain.attend(qkv_BX, slot_B + 1, frequency, again[0], again[1], *common)
    close(found, expected, dtype)
    close(memory, again, dtype)
    untouched = torch.arange(slots) != slot_B[:, None]
    rows_KSH = memory.permute(1, 3, 0, 2, 4)[untouched]
    assert torch.equal(rows_KSH, again.permute(1, 3, 0, 2, 4)[untouched])


@FLOATS
@pytest.mark.parametrize(
    ("heads", "kv_heads", "norm"), [(8, 1, NO_NORM), (4, 2, NO_NORM), (5, 5, NORM), (6, 2, NORM)]
)
def test_rotation_into_the_cache(kernels, dtype, heads, kv_heads, norm):
    """New slots after others, in a cache with more slots; nothing else is written."""
    size, slots, new = 32, 9, slice(2, 6)
    qkv_BLX = normal(2, 4, (heads + 2 * kv_heads) * size, dtype=dtype)
    angle = normal(2, 4, 1, size // 2, seed=1, dtype=torch.float32)
    cos, sin = angle.cos().to(dtype).repeat(1, 1, 1, 2), angle.sin().to(dtype)
    memory = normal(2, 2, kv_heads, slots, size, seed=2, dtype=dtype)
    again = memory.clone()
    common = (qkv_BLX, cos, torch.cat([-sin, sin], dim=-1))
    found = kernels.rotate(*common, *memory[..., new, :], *norm)
    expected = plain.rotate(*common, *again[..., new, :], *norm)
    assert found.is_contiguous()
    close(found, expected, dtype)
    close(memory, again, dtype)
    assert torch.equal(memory[..., :2, :], again[..., :2, :])
    assert torch.equal(memory[..., 6:, :], again[..., 6:, :])


@FLOATS
@pytest.mark.parametrize("programs", [5, 12, 512], ids="of {} programs".format)
def test_choice(kernels, monkeypatch, dtype, programs):
    """The first of equal logits; neither the excluded id nor ids beyond the vocabulary."""
    monkeypatch.setattr(kernels.greedy, "PROGRAMS", programs)  # 1, 2 and 64 parts of a row
    logits_BV = normal(5, 9000, dtype=dtype) * 3
    logits_BV[0, 8500:] = 90
    logits_BV[1, [40, 8000]] = 50
    logits_BV[2, 77] = 60
    logits_BV[3, 500] = torch.nan
    logits_BV[4, [4100, 4110]] = 40
    arguments = (8400, 77, 4096, 20, 16)
    token_B, *others = kernels.select_greedy(logits_BV, *arguments)
    their_token_B, *their_others = plain.select_greedy(logits_BV, *arguments)
    is_number = torch.arange(5) != 3
    assert torch.equal(token_B[is_number], their_token_B[is_number])
    assert token_B[1] == 40
    assert 0 <= token_B[3] < 8400
    for one, other in zip(others, their_others, strict=True):
        assert one[3].isnan()
        close(one[is_number], other[is_number], torch.float32)


#: Compute capabilities, and the shared memory of their GPUs; RTX cards have the least of 8.x on.
GPUS = {75: 64, 80: 163, 86: 99, 89: 99, 90: 227, 120: 99}


@pytest.mark.nightly
@pytest.mark.parametrize("capability", GPUS)
def test_the_kernels_compile_for_gpus(kernels, capability):
    """Without a GPU; on one, a kernel that takes too much shared memory is unsupported.

    This is so for attention in bfloat16 on 7.5, whose GPUs compute in float16 or float32.
    """
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.support.compile_kernels", str(capability)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr
    shared = json.loads(done.stdout)
    assert len(shared) == (30 if capability < 89 else 33)
    too_large = [name for name, size in shared.items() if size > GPUS[capability] * 1024]
    assert all(name.startswith("attend bf16") for name in too_large)
    assert len(too_large) == (4 if capability == 75 else 0)
