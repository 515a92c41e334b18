"""`pgcli info`: the sizes of a checkpoint, without loading it."""

import json

import pytest
import torch

from pgcli.checkpoints import weights
from pgcli.checkpoints.config import read_config
from pgcli.checkpoints.find import Checkpoint
from pgcli.cli.reports import info_facts
from pgcli.engine.memory import weight_bytes
from pgcli.info.model_info import model_info
from pgcli.model.kv_cache import BUCKET
from tests.support.kernels import KINDS, simulate


def test_info_matches_the_loaded_model(tiny, tiny2):
    for folder in (tiny, tiny2):
        values = model_info(Checkpoint("tiny", folder, "r1"), device="cpu", dtype="bfloat16")
        model = weights.load_paligemma(folder, read_config(folder), dtype=torch.bfloat16)
        assert values["parameters"] == sum(p.numel() for p in model.parameters())
        assert values["weights_bytes"] == sum(p.nbytes for p in model.parameters())
        assert (values["name"], values["path"], values["revision"]) == ("tiny", str(folder), "r1")
        assert (values["resolution"], values["patch_size"], values["image_tokens"]) == (56, 14, 16)
        assert values["vocabulary"] == model.decoder.embed_tokens.num_embeddings
        assert (values["device"], values["dtype"]) == ("cpu", "bfloat16")
        cache = model.kv_cache(1)
        cache.reserve(1, BUCKET)
        assert values["cache_bytes_per_token"] == cache.nbytes // BUCKET
        assert json.loads(json.dumps(values))["architecture"]["decoder"]["width"] == 48


def test_architecture_distinguishes_the_generations(tiny, tiny2):
    first, later = (
        model_info(Checkpoint("x", folder), device="cpu")["architecture"]
        for folder in (tiny, tiny2)
    )
    assert (first["generation"], later["generation"]) == (1, 2)
    assert later["decoder"]["attn_softcap"] == 0.5
    assert (first["vision"]["depth"], first["vision"]["num_heads"]) == (2, 2)
    shown = dict(info_facts(model_info(Checkpoint("x", tiny2), device="cpu")))
    assert shown["generation"] == "PaliGemma 2 (Gemma 2)"
    assert shown["sliding window"] == "6 tokens in 2 layers"
    assert shown["soft caps"] == "attention 0.5, logits 0.3"
    assert shown["decoder"].startswith("width 48, 3 layers, mlp 96, 4 heads, key/value heads 2")


@pytest.mark.parametrize("kind", KINDS)
def test_info_counts_with_quantized_weights(cli, tiny, monkeypatch, kind):
    simulate(monkeypatch, kind)
    on_cpu = ("info", tiny, "--device", "cpu", "--json")
    plain, quantized = (
        json.loads(cli(*on_cpu, "--quantize", name)[1]) for name in ("none", "int8")
    )
    weights = weight_bytes(read_config(tiny), torch.float32, quantize="int8")
    assert (quantized["quantize"], quantized["weights_bytes"]) == ("int8", weights)
    saved = plain["weights_bytes"] - weights
    assert saved > plain["weights_bytes"] / 3
    assert quantized["memory"]["8"] == plain["memory"]["8"] - saved
    assert cli(*on_cpu, "--quantize", "fp8")[0] == 17
    code, _, message = cli("info", "demo-towers", "--quantize", "int8")
    assert (code, "only models that generate text can be quantized" in message) == (2, True)
