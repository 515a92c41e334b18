"""Loading part by part gives the same weights as loading at once, in less memory."""

import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pgcli.checkpoints import weights
from pgcli.checkpoints.adapters import open_adapter
from pgcli.checkpoints.config import read_config
from pgcli.checkpoints.find import Checkpoint
from pgcli.engine import loader, memory
from pgcli.engine.loader import open_engine
from pgcli.engine.memory import parameters, weight_bytes
from pgcli.errors import NoUsableDevice
from pgcli.model.cpu.linear_kernels import (
    CompactLinearKernel,
    Int8DecodeLinearKernel,
    Int8LinearKernel,
)
from pgcli.model.cpu.optimize import CompactProjection, MappedEmbedding, choose_head_kernel
from pgcli.model.cpu.processor import LinearKernel
from pgcli.model.optimize import optimize_for_device
from pgcli.model.paligemma import PaliGemma
from pgcli.model.quantized import quantize_mlps
from tests.support.adapted_models import (
    DECODER,
    EMBEDDINGS,
    PEFT_WARNINGS,
    PROMPTS,
    SOME,
    pgcli_logits,
    pixels,
    trained,
)
from tests.support.kernels import KINDS, simulate

pytestmark = PEFT_WARNINGS
EMBEDDING, FILE = "language_model.model.embed_tokens.weight", "model.safetensors"


def outputs(model):
    """Logits of a prefill and of a step, which depend on all layers of the model."""
    pixels_BCRR = pixels().to(model.projector.weight.dtype)
    with torch.inference_mode():
        cache = model.kv_cache(len(PROMPTS))
        first_BV = model.prefill(model.encode(pixels_BCRR), PROMPTS, None, cache)
        return first_BV, model.decode_step(first_BV.argmax(-1), cache)


def in_one_piece(folder, dtype, quantize, adapter=None):
    """All weights are loaded, then all packed or quantized, with the embedding in memory."""
    adapter = None if adapter is None else partial(open_adapter, adapter)
    model = weights.load_paligemma(folder, read_config(folder), dtype=dtype, adapter=adapter)
    optimize_for_device(model, quantize)
    return model


def by_parts(folder, dtype, quantize, adapter=None):
    return open_engine(
        Checkpoint("m", folder),
        adapter=None if adapter is None else Checkpoint("a", adapter),
        device="cpu",
        dtype=str(dtype).removeprefix("torch."),
        batch_size=1,
        quantize=quantize,
    ).model


@pytest.mark.parametrize("quantize", ["none", "int8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_loading_by_parts_gives_the_same_weights(base, monkeypatch, kind, dtype, quantize):
    simulate(monkeypatch, kind)
    expected, found = (f(base, dtype, quantize) for f in (in_one_piece, by_parts))
    for whole, part in zip(outputs(expected), outputs(found), strict=True):
        assert torch.equal(whole, part)
    is_mapped = quantize == "int8" or choose_head_kernel(dtype, quantize) is not None
    assert isinstance(found.decoder.embed_tokens, MappedEmbedding) == is_mapped
    assert found.decoder.embed(PROMPTS).dtype == dtype


@pytest.mark.parametrize("config", [{"target_modules": DECODER}, *EMBEDDINGS], ids=str)
def test_adapters_are_merged_before_their_part_is_quantized(tiny, tmp_path, config):
    """An embedding that the adapter changes is in memory; the head may have its own."""
    trained(tiny, tmp_path, **(SOME | config))
    expected, found = (f(tiny, torch.float32, "int8", tmp_path) for f in (in_one_piece, by_parts))
    for whole, part in zip(outputs(expected), outputs(found), strict=True):
        assert torch.equal(whole, part)
    assert not torch.equal(pgcli_logits(found), pgcli_logits(by_parts(tiny, torch.float32, "int8")))
    changed = "embed_tokens" in str(config)
    assert isinstance(found.decoder.embed_tokens, MappedEmbedding) is not changed


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_rows_of_a_mapped_embedding_are_converted(tiny, tmp_path, stored):
    """The same as converting the whole; replacing or removing the file does not change them."""
    folder = Path(shutil.copytree(tiny, tmp_path / "model"))
    tensors = {name: tensor.to(stored) for name, tensor in load_file(folder / FILE).items()}
    save_file(tensors, folder / FILE)
    model = by_parts(folder, torch.bfloat16, "int8")
    assert model.decoder.embed_tokens.weight.dtype == stored
    (folder / FILE).unlink()
    wanted = tensors[EMBEDDING].to(torch.bfloat16)[PROMPTS] * torch.tensor(48**0.5).bfloat16()
    assert torch.equal(model.decoder.embed(PROMPTS), wanted)


def test_only_the_next_part_is_loaded_beside_the_one_in_work(base):
    config = read_config(base)
    seen = []

    def finish(model, part):
        parts = [*model.parts()]
        has_memory = [
            not any(p.is_meta for p in other.parameters())
            for other in (*model.decoder.layers, *model.vision.layers)
        ]
        seen.append((parts.index(part), sum(has_memory)))
        assert not any(p.is_meta for p in part.parameters())
        assert not model.decoder.embed_tokens.weight.is_meta

    model = weights.load_paligemma(base, config, dtype=torch.float32, finish=finish)
    layers = config.decoder.depth + config.vision.depth
    assert seen == [(index, min(index + 1, layers)) for index in range(layers + 2)]
    whole = dict(weights.load_paligemma(base, config, dtype=torch.float32).named_parameters())
    assert all(torch.equal(whole[name], found) for name, found in model.named_parameters())


class TestWeightBytes:
    """`info` and the check before loading count the loaded model's bytes."""

    @pytest.mark.parametrize("quantize", ["none", "int8"])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
    @pytest.mark.parametrize("kind", KINDS)
    def test_weight_bytes_on_a_cpu(self, tiny2, monkeypatch, kind, dtype, quantize):
        simulate(monkeypatch, kind)
        model = by_parts(tiny2, dtype, quantize)
        held = sum(tensor.nbytes for tensor in model.parameters())
        for module in model.modules():
            if isinstance(module, CompactProjection):  # its kernel shares the parameter
                held -= module.weight.nbytes
            for value in vars(module).values():
                for kernel in value if isinstance(value, list) else [value]:
                    held += kernel_bytes(getattr(kernel, "__self__", kernel), dtype)
        norms = sum("norm" in name for name, _ in PaliGemma(model.config).named_parameters())
        counted = weight_bytes(model.config, dtype, quantize=quantize)
        assert 0 <= counted - held <= norms * 4 * model.config.decoder.width

    def test_weight_bytes_of_fp8_on_a_gpu(self, base):
        model = weights.load_paligemma(base, read_config(base), dtype=torch.bfloat16)
        plain = sum(tensor.nbytes for tensor in model.parameters())
        assert weight_bytes(model.config, torch.bfloat16, device="cuda") == plain
        quantize_mlps(model)
        scales = [tensor for name, tensor in model.named_buffers() if name.endswith("scale_N")]
        held = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
        counted = weight_bytes(model.config, torch.bfloat16, device="cuda", quantize="fp8")
        assert counted == held - sum(tensor.nbytes for tensor in scales)

    def test_weights_that_do_not_fit_suggest_quantization(self, tiny, monkeypatch):
        config = read_config(tiny)
        int8 = weight_bytes(config, torch.float32, quantize="int8")
        assert int8 < parameters(config) * 4
        monkeypatch.setattr(memory, "free_bytes", lambda device: int8)
        with pytest.raises(NoUsableDevice) as refused:
            open_engine(Checkpoint("m", tiny), device="cpu", dtype="float32", batch_size=1)
        assert "--dtype bfloat16 takes half; --quantize takes less" in refused.value.hint
        monkeypatch.setattr(loader, "free_bytes", lambda device: 10**9)
        open_engine(
            Checkpoint("m", tiny), device="cpu", dtype="float32", quantize="int8", batch_size=1
        )


def kernel_bytes(kernel, dtype):
    """The bytes of a kernel's weights and bias, including the packed weights for prefills."""
    if isinstance(kernel, Int8DecodeLinearKernel):
        return kernel_bytes(kernel._decode, dtype) + kernel_bytes(kernel._prefill, dtype)
    if not isinstance(kernel, LinearKernel):
        return 0
    bias = 0 if kernel._bias is None else kernel._bias.nbytes
    if isinstance(kernel, CompactLinearKernel):
        return kernel._weight_ND.nbytes + bias
    is_int8 = isinstance(kernel, Int8LinearKernel)
    return kernel._weight.numel() * (1 if is_int8 else dtype.itemsize) + bias
