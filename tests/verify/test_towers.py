"""`pgcli verify` and `info` on two towers and classifiers: a changed weight is found."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from pgcli.checkpoints import weights
from pgcli.cli.main import main
from pgcli.towers import engine
from pgcli.verify.cases import our_outputs
from pgcli.verify.compare import compare_tensors
from tests.support import towers


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    kinds = ("siglip2", "clip", "siglip_vision_model", "vit")
    return {kind: towers.checkpoint_into(tmp_path_factory.mktemp(kind), kind) for kind in kinds}


def verify(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = main(["verify", str(folder), "--device", "cpu", "--dtype", "float32", "--json"])
    return code, json.loads(capsys.readouterr().out)


STAGES = {
    "siglip2": ["image embeddings", "text embeddings", "logits"],
    "clip": ["image embeddings", "text embeddings", "logits"],
    "siglip_vision_model": ["image embeddings"],
    "vit": ["classifier logits"],
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", STAGES)
def test_unchanged_model_is_the_same(folders, kind, capsys):
    code, proof = verify(folders[kind], capsys)
    assert (code, proof["same"]) == (0, True), proof["verdict"]
    (run,) = proof["comparisons"]
    assert [stage["stage"] for stage in run["stages"]] == STAGES[kind]
    assert all(stage["largest"] < 1e-5 * max(1, stage["scale"]) for stage in run["stages"])
    assert proof["program"].startswith("transformers ")
    assert proof["levels"]["largest"] < 0.1
    has_texts = kind in ("siglip2", "clip")
    assert proof["texts"] == ({"same": True, "first": None, "reason": None} if has_texts else None)


@pytest.mark.parametrize(
    ("kind", "part", "stage"),
    [
        ("siglip2", "image_pooling.mlp.fc2.weight", "image embeddings"),
        ("clip", "text.final_layer_norm.bias", "text embeddings"),
        ("siglip2", "logit_bias", "logits"),
        ("vit", "classifier.bias", "classifier logits"),
    ],
)
def test_changed_weight_is_found(folders, kind, part, stage, monkeypatch, capsys):
    load = weights.load_encoder

    def load_changed(*arguments: Any, **options: Any) -> Any:
        model = load(*arguments, **options)
        parameter = dict(model.named_parameters())[part]
        parameter.add_(torch.full_like(parameter, 0.01).cumsum(-1) if parameter.ndim else 0.01)
        return model

    monkeypatch.setattr(weights, "load_encoder", load_changed)
    code, proof = verify(folders[kind], capsys)
    assert code == 5
    assert proof["verdict"] == f"different: {stage} differ in float32"


@pytest.mark.slow
def test_different_tokens_are_found(folders, monkeypatch, capsys):
    open_text_tokenizer = engine.open_text_tokenizer

    def without_eos(*arguments: Any) -> Any:
        from dataclasses import replace

        return replace(open_text_tokenizer(*arguments), pad=2)

    monkeypatch.setattr(engine, "open_text_tokenizer", without_eos)
    code, proof = verify(folders["siglip2"], capsys)
    assert code == 5
    assert proof["verdict"].startswith("different: 'a red star' has different tokens in trans")


def test_report_is_readable(folders, capsys):
    assert main(["verify", str(folders["siglip2"]), "--device", "cpu"]) == 0
    shown = dict(line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert shown["texts"] == "same tokens"
    assert shown["float32: logits"].startswith("same: largest difference ")
    assert shown["bfloat16: image embeddings"].startswith("same: ")
    assert shown["verdict"].endswith("in float32 and bfloat16")


def test_rounding_of_logits_comes_from_scale_and_bias(folders):
    inputs = (torch.zeros(1, 3, 32, 32), torch.zeros(1, 16, dtype=torch.long))
    for kind, bias in (("siglip2", -3.0), ("clip", 0.0)):
        outputs = our_outputs(towers.load_from(folders[kind]), *inputs)
        assert outputs.terms["logits"] == pytest.approx(math.exp(2) + abs(bias))
    logits = torch.ones(4, 3)
    for terms, same in ((0.0, False), (20.0, True)):
        found = compare_tensors("x", logits + 0.05, logits, logits, exact=False, terms=terms)
        assert found.same is same


# --- info


@pytest.mark.parametrize("kind", STAGES)
def test_info_matches_the_loaded_model(folders, kind, capsys):
    folder = folders[kind]
    assert main(["info", str(folder), "--device", "cpu", "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    reference = towers.reference(kind) if kind != "siglip2" else None
    if kind in ("siglip_vision_model", "vit"):
        assert values["parameters"] == sum(p.numel() for p in reference.parameters())
    assert values["path"] == str(folder)
    assert values["revision"] is None
    assert (values["resolution"], values["patch_size"], values["image_tokens"]) == (32, 8, 16)
    assert values["weights_bytes"] == 4 * values["parameters"]
    expected = {
        "siglip2": ("two_towers", 48, 16, None),
        "clip": ("two_towers", 40, 16, None),
        "siglip_vision_model": ("vision_tower", 48, None, None),
        "vit": ("classifier", None, None, ["circle", "square", "star"]),
    }
    found = (values["kind"], values["embedding"], values["text_tokens"], values["labels"])
    assert found == expected[kind]


def test_info_names_family_and_labels(folders, capsys):
    assert main(["info", str(folders["vit"]), "--device", "cpu"]) == 0
    shown = dict(line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert shown["family"] == "ViT"
    assert shown["labels"] == "3: circle, square, star"
    assert shown["vision"] == "width 48, 3 layers, mlp 96, 4 heads, gelu"
