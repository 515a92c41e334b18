"""8-bit MLPs: rounding, products compared with float64, launches of a GPU step, and errors."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from benchmarks.step_ops import count_step, meta_model
from pgcli.checkpoints import weights
from pgcli.checkpoints.config import read_config
from pgcli.cli.main import main
from pgcli.engine import loader
from pgcli.engine.sampler import GREEDY, SamplingParams
from pgcli.errors import NoUsableDevice
from pgcli.model import quantized
from pgcli.model.cpu.linear_kernels import quantize_per_token
from pgcli.model.cuda import plain
from pgcli.model.cuda.optimize import fuse
from pgcli.model.paligemma import PaliGemma
from pgcli.model.quantize import FLOAT8, MAX_VALUE, quantize_per_channel, quantize_per_row
from pgcli.model.quantized import QuantizedLinear, QuantizedMLP, quantize_mlps
from tests.support.kernels import interpreted_kernels
from tests.support.runs import EXAMPLES
from tests.support.tiny import PATCHES, normal

kernels = pytest.fixture(interpreted_kernels, scope="module")
MOST_LAUNCHES = 260
CUDA, CPU = torch.device("cuda"), torch.device("cpu")
#: Ways to quantize, and their largest error: relative (half of the last of three digits), and
#: as a fraction of the scale.
QUANTIZED = {
    "rows in int8": (lambda x: quantize_per_row(x, torch.int8), 0.0, 0.5),
    "rows in float8": (lambda x: quantize_per_row(x, FLOAT8), 2**-4, 2**-10),
    "tokens in int8": (quantize_per_token, 0.0, 0.51),
    "tokens of bfloat16": (lambda x: quantize_per_token(x.bfloat16()), 2**-8, 0.51),
}


def distance(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def restored(quantized: Tensor, scale: Tensor) -> Tensor:
    return quantized.double() * scale.double()


@pytest.mark.parametrize("how", QUANTIZED)
@given(st.lists(st.floats(-(2.0**99), 2.0**99, width=32), min_size=1, max_size=40))
def test_quantized_values_are_the_nearest_for_any_values(how, numbers):
    x = torch.tensor([numbers])
    quantize, relative, absolute = QUANTIZED[how]
    quantized, scale = quantize(x)
    assert quantized.float().abs().max() <= MAX_VALUE[quantized.dtype]
    error = (restored(quantized, scale) - x.double()).abs()
    assert (error <= 1.001 * (relative * x.abs() + absolute * scale)).all()


@pytest.mark.parametrize("rows", [1, 3, 40])
def test_products_match_the_dequantized_values(rows):
    """Exact except for the output's rounding, and close to the product of the original numbers."""
    x, weight = normal(rows, 1, 64).float(), normal(48, 64, seed=1).bfloat16()
    weight[7] *= 1e4  # a large channel does not affect the others
    quantized, scale = quantize_per_row(x, FLOAT8)
    quantized_weight, weight_scale = quantize_per_channel(weight, FLOAT8)
    found = QuantizedLinear(weight)(quantized, scale)
    assert (found.dtype, found.shape) == (torch.bfloat16, (rows, 1, 48))
    exact = F.linear(restored(quantized, scale), restored(quantized_weight, weight_scale[:, None]))
    assert distance(found, exact) < 4e-3
    wanted = F.linear(x.double(), weight.double())
    others = torch.arange(48) != 7
    assert distance(found[..., others], wanted[..., others]) < 0.06


def logits_of(model: PaliGemma) -> Tensor:
    """The logits of a prefill, a step, a departure and a step."""
    patch_BPD = normal(3, PATCHES, model.config.decoder.width).to(model.projector.weight.dtype)
    token_BT = torch.arange(300, 312).view(3, 4)
    cache = model.kv_cache(3, fixed_shape=True)
    found = [model.prefill(patch_BPD, token_BT, None, cache)]
    found.append(model.decode_step(token_BT[:, 1].clone(), cache))
    cache.remove([0])
    return torch.cat([*found, model.decode_step(token_BT[:, 2].clone(), cache)])


@pytest.mark.parametrize("folder", ["tiny", "tiny2"])
@torch.inference_mode()
def test_fused_and_plain_decoders_quantize_alike(folder, request):
    path: Path = request.getfixturevalue(folder)
    model = weights.load_paligemma(path, read_config(path), dtype=torch.bfloat16)
    exact = logits_of(model)
    quantize_mlps(model)
    assert all(isinstance(layer.mlp, QuantizedMLP) for layer in model.decoder.layers)
    assert not any("mlp" in name for name, _ in model.decoder.named_parameters())
    expected = logits_of(model)
    fuse(model)
    found = logits_of(model)
    assert distance(found, expected) < 0.04
    assert 0 < distance(found, exact) < 0.15


@pytest.mark.parametrize("generation", [1, 2])
@pytest.mark.parametrize(
    ("sampling", "more"),
    [(GREEDY, 0), (SamplingParams(temperature=1, top_p=0.9), 70)],
    ids=["greedy", "sampled"],
)
def test_a_step_of_a_3b_model_has_few_launches(generation, sampling, more):
    counter = count_step(meta_model(generation), 64, sampling)
    assert 0 < counter.launches.total() <= MOST_LAUNCHES + more, counter.launches


# --- kernels beside their plain versions


@pytest.mark.parametrize("is_held", [True, False], ids=["held", "read twice"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_kernels_quantize_as_the_plain_operators(kernels, monkeypatch, dtype, is_held):
    if not is_held:  # a row takes several iterations
        monkeypatch.setattr(kernels.activations, "MAX_COLUMNS_HELD", 16)
        monkeypatch.setattr(kernels.activations, "COLUMNS_AT_ONCE", 32)
    x, delta = normal(3, 2, 48).to(dtype), normal(3, 2, 48, seed=2).to(dtype)
    scale = 1 + normal(48, seed=3).float() / 10
    for operator, arguments in (
        ("residual_norm_quantized", (x, delta, None, scale, 1e-6)),
        ("residual_norm_quantized", (x, delta, scale, scale, 1e-6)),
        ("geglu_quantized", (normal(3, 2, 2 * 72).to(dtype) * 3,)),
    ):
        *one, quantized, by = getattr(kernels, operator)(*arguments)
        *other, plain_quantized, plain_by = getattr(plain, operator)(*arguments)
        assert (quantized.dtype, by.shape, by.dtype) == (
            plain_quantized.dtype,
            plain_by.shape,
            by.dtype,
        )
        exact = dtype == torch.float32
        assert distance(by, plain_by) < (1e-6 if exact else 0.01)
        error = distance(restored(quantized, by), restored(plain_quantized, plain_by))
        assert error < (1e-3 if exact else 0.04)
        assert all(distance(a, b) < 0.04 for a, b in zip(one, other, strict=True))


# --- refusals


def refusal(name: str, device: torch.device, dtype: torch.dtype) -> tuple[str, str]:
    with pytest.raises(NoUsableDevice) as refused:
        loader.check_quantization(name, device, dtype, quantized.SMALL)
    assert refused.value.exit_code == 17
    return str(refused.value), refused.value.hint


@pytest.mark.parametrize(
    ("name", "capability", "dtype", "problem", "remedy"),
    [
        ("fp8", (8, 0), torch.bfloat16, "capability 8.9, but cuda has 8.0", "drop"),
        (
            "int8",
            (9, 0),
            torch.bfloat16,
            "int8 needs a CPU, but the model runs on cuda",
            "use --quantize fp8",
        ),
        ("int8", (8, 6), torch.bfloat16, "int8 needs a CPU", "drop"),
        ("fp8", (9, 0), torch.float32, "computes in bfloat16, not in float32", "--d"),
        ("fp8", (9, 0), torch.bfloat16, "does not work on cuda with this PyTorch", "drop"),
    ],
)
def test_gpus_without_8_bit_products_are_rejected(
    monkeypatch, name, capability, dtype, problem, remedy
):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(quantized, "mlp_problem", lambda *given: "no such product")
    found, hint = refusal(name, CUDA, dtype)
    assert problem in found
    assert hint.startswith(remedy)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(quantized, "mlp_problem", lambda *given: "")
    loader.check_quantization("fp8", CUDA, torch.bfloat16, quantized.SMALL)


def test_other_devices_are_rejected(capsys):
    assert "NVIDIA GPU" in refusal("fp8", CPU, torch.bfloat16)[0]
    assert "needs a CPU" in refusal("int8", torch.device("mps"), torch.float32)[0]
    assert main(["caption", str(EXAMPLES), "--model", "demo", "--quantize", "fp8"]) == 17
    assert "--quantize int8, or drop --quantize" in capsys.readouterr().err


def test_products_that_fail_or_are_wrong_are_found(monkeypatch):
    def problem() -> str:
        quantized.mlp_problem.cache_clear()
        return quantized.mlp_problem(CPU, torch.bfloat16, quantized.SMALL)

    assert problem() == ""
    shapes = []
    right = QuantizedLinear.forward
    monkeypatch.setattr(QuantizedLinear, "forward", lambda *given: 2 * right(*given))
    assert "% off" in problem()
    monkeypatch.setattr(QuantizedLinear, "forward", lambda *given: 1 / 0)
    assert problem().startswith("division by zero; if gcc or Python.h is missing: apt-get install")

    def of_few_rows(linear: QuantizedLinear, quantized: Tensor, scale: Tensor) -> Tensor:
        shapes.append((len(quantized), *linear.quantized_ND.shape))
        if len(quantized) > 128:
            raise RuntimeError("no such product")
        return right(linear, quantized, scale)

    monkeypatch.setattr(QuantizedLinear, "forward", of_few_rows)
    assert problem().startswith("no such product; ")
    steps = [(rows, *shape) for rows in (1, 8) for shape in ((256, 64), (64, 128))]
    assert shapes == [*steps, (300, 256, 64)]
    quantized.mlp_problem.cache_clear()
