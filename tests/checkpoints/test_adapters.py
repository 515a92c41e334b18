"""Merged LoRA adapters give the same logits as PEFT, in memory and as checkpoints."""

import json
import math
import shutil
from functools import partial

import pytest
import torch
from safetensors.torch import load_file, save_file

from pgcli.checkpoints import adapters, weights
from pgcli.checkpoints.config import read_config
from pgcli.checkpoints.find import Checkpoint
from pgcli.checkpoints.safetensors_files import read_into
from pgcli.checkpoints.save import merge_adapter, save
from pgcli.engine import loader
from pgcli.errors import InvalidCheckpoint
from pgcli.model.optimize import optimize_for_device
from pgcli.training.lora import LoraSettings, save_adapter
from tests.support.adapted_models import (
    DECODER,
    EMBEDDINGS,
    LORA_OPTIONS,
    PEFT_WARNINGS,
    SOME,
    TARGETS,
    TYING,
    adapted,
    hf_logits,
    pgcli_logits,
    reference,
    trained,
)

WEIGHTS = "adapter_model.safetensors"
EXACT = {"rtol": 0, "atol": 1e-4}
PREFIX = "base_model.model."
QUERY = f"{PREFIX}model.language_model.layers.1.self_attn.q_proj"
pytestmark = PEFT_WARNINGS


def merged_model(base, folder, dtype=torch.float32, device="cpu"):
    adapter = None if folder is None else partial(adapters.open_adapter, folder)
    return weights.load_paligemma(
        base, read_config(base), dtype=dtype, device=device, adapter=adapter
    )


def assert_same_logits(peft_model, model, base):
    """Check that both models give equal logits, and the base model others."""
    torch.testing.assert_close(pgcli_logits(model), hf_logits(peft_model), **EXACT)
    assert (pgcli_logits(model) - pgcli_logits(merged_model(base, None))).abs().max() > 0.02


@pytest.mark.parametrize("config", [*TARGETS, *LORA_OPTIONS, *EMBEDDINGS], ids=str)
def test_logits_equal_those_of_peft(base, tmp_path, config):
    """Compared with PEFT's unmerged model, as its merge changes tied weights both."""
    peft_model = trained(base, tmp_path, **(SOME | config))
    model = merged_model(base, tmp_path)
    assert_same_logits(peft_model, model, base)
    parts_ends = config in EMBEDDINGS and config != TYING
    assert model.config.tied is not parts_ends
    assert (model.decoder.lm_head.weight is not None) is parts_ends


def test_a_saved_embedding_stays_tied_to_the_head(tiny, tmp_path):
    peft_model = trained(tiny, tmp_path, **SOME)
    with torch.no_grad():
        peft_model.get_input_embeddings().weight.mul_(1.1)
    peft_model.save_pretrained(tmp_path, save_embedding_layers=True)
    assert any("lm_head" in name for name in load_file(tmp_path / WEIGHTS))
    model = merged_model(tiny, tmp_path)
    assert_same_logits(peft_model, model, tiny)
    assert model.decoder.lm_head.weight is None


def renamed(folder, rename):
    tensors = load_file(folder / WEIGHTS)
    changed = {rename(name): tensor for name, tensor in tensors.items()}
    assert changed.keys() != tensors.keys()
    save_file(changed, folder / WEIGHTS)


def older(name):
    """The names of transformers before 4.52."""
    name = name.replace("model.model.language_model.", "model.language_model.model.")
    name = name.replace("model.model.vision_tower.", "model.vision_tower.vision_model.")
    return name.replace("model.model.multi_modal", "model.multi_modal")


def with_adapter_name(name):
    for part in ("lora_A", "lora_B"):
        name = name.replace(part, part + ".default")
    return name.replace("projector.linear", "projector.modules_to_save.default.linear")


@pytest.mark.parametrize(
    "rename",
    [older, with_adapter_name, lambda name: name.removeprefix(PREFIX)],
    ids=["older", "adapter name", "bare"],
)
def test_every_naming_scheme_is_read_the_same(base, tmp_path, rename):
    modules = [*DECODER, "fc1", "patch_embedding"]
    saved = ["multi_modal_projector"]
    peft_model = trained(base, tmp_path, target_modules=modules, modules_to_save=saved)
    renamed(tmp_path, rename)
    assert_same_logits(peft_model, merged_model(base, tmp_path), base)


def test_a_large_weight_is_merged_in_chunks(tiny, tmp_path, monkeypatch):
    trained(tiny, tmp_path, target_modules=DECODER)
    whole = pgcli_logits(merged_model(tiny, tmp_path))
    monkeypatch.setattr(adapters, "CHUNK", 100)
    torch.testing.assert_close(pgcli_logits(merged_model(tiny, tmp_path)), whole, rtol=0, atol=1e-5)


def test_weights_are_merged_on_the_device(tiny, tmp_path, device):
    trained(tiny, tmp_path, target_modules=[*DECODER, "fc1", "embed_tokens"])
    model = merged_model(tiny, tmp_path, device=device)
    assert {parameter.device.type for parameter in model.parameters()} == {device}
    torch.testing.assert_close(
        pgcli_logits(model.cpu()), pgcli_logits(merged_model(tiny, tmp_path)), **EXACT
    )


# Checkpoints with a merged adapter

SETTINGS = LoraSettings(rank=4, alpha=6, targets="all")


def test_a_merged_checkpoint_has_the_logits_of_the_adapter(base, tmp_path):
    model = adapted(base, SETTINGS)
    save_adapter(model, SETTINGS, tmp_path / "adapter", base_model=str(base))
    merge_adapter(base, tmp_path / "adapter", tmp_path / "merged")
    merged = weights.load_paligemma(tmp_path / "merged", read_config(base), dtype=torch.float32)
    expected = pgcli_logits(model)
    torch.testing.assert_close(pgcli_logits(merged), expected, rtol=0, atol=1e-5)
    theirs = hf_logits(reference(tmp_path / "merged"))
    torch.testing.assert_close(theirs, expected, rtol=0, atol=1e-4)
    assert (expected - hf_logits(reference(base))).abs().max() > 0.02
    names = {file.name for file in base.iterdir()}
    assert names == {file.name for file in (tmp_path / "merged").iterdir()}


def test_an_unmerged_adapter_is_an_error_on_save(tiny, tmp_path):
    with pytest.raises(ValueError, match="adapted"):
        save(adapted(tiny, SETTINGS), tmp_path, dtype=torch.float32)
    assert not list(tmp_path.iterdir())


# Refusals, which name the tensor or setting


@pytest.fixture(scope="module")
def written(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapter")
    trained(tiny, folder, **SOME)
    return folder


@pytest.fixture
def folder(written, tmp_path):
    return shutil.copytree(written, tmp_path / "adapter")


def test_an_engine_has_merged_weights_and_a_label_with_both(tiny, folder):
    base = Checkpoint("m", tiny)
    adapter = Checkpoint("org/a", folder, "12ab")
    engine = loader.open_engine(base, adapter=adapter, device="cpu", dtype="float32", batch_size=1)
    assert engine.label == "m+org/a@12ab"
    merged, plain = merged_model(tiny, folder), merged_model(tiny, None)
    for model in (merged, plain):
        optimize_for_device(model)
    assert torch.equal(pgcli_logits(engine.model), pgcli_logits(merged))
    assert not torch.equal(pgcli_logits(engine.model), pgcli_logits(plain))
    assert loader.open_engine(base, device="cpu", batch_size=1).label == "m"


def configure(folder, **changes):
    file = folder / "adapter_config.json"
    values = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({key: value for key, value in values.items() if value != "gone"}))


def alter(folder, **changes):
    """Change tensors by name: None removes one, a function maps the old one to a new one."""
    tensors = load_file(folder / WEIGHTS)
    for name, change in changes.items():
        value = change(tensors[name]) if callable(change) else change
        tensors[name] = value
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    save_file({name: tensor.contiguous() for name, tensor in kept.items()}, folder / WEIGHTS)


def refused(base, folder):
    """The error of loading a model with an adapter, and the weights that were read before it."""
    read = []

    def record(out, tensor):
        read.append(tensor.name)
        read_into(out, tensor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights, "read_into", record)
        with pytest.raises(InvalidCheckpoint) as caught:
            merged_model(base, folder)
    return caught.value, read


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"peft_type": "LOHA"}, "LOHA"),
        ({"peft_type": "gone"}, "peft_type"),
        ({"trainable_token_indices": [1, 2]}, "trainable_token_indices"),
        ({"a_setting_of_next_year": 1.5}, "a_setting_of_next_year"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights"),
        ({"r": 0}, "r = 0"),
        ({"r": 5}, "lora_A"),
        ({"lora_alpha": "8"}, "lora_alpha"),
        ({"rank_pattern": [1]}, "rank_pattern"),
        ({"alpha_pattern": {"(": 1}}, "alpha_pattern"),
        ({"modules_to_save": "lm_head"}, "modules_to_save"),
        ({"use_dora": True}, "use_dora = True"),
        ({"lora_bias": True}, "lora_bias = True"),
        ({"bias": "all"}, "bias = 'all'"),
    ],
    ids=str,
)
def test_an_unsupported_setting_is_named(tiny, folder, changes, named):
    configure(folder, **changes)
    error, read = refused(tiny, folder)
    assert named in str(error)
    assert not read


@pytest.mark.parametrize(
    "changes",
    [
        {"a_setting_of_next_year": None, "another": False, "third": {}, "fourth": []},
        {"lora_dropout": 0.1, "task_type": "CAUSAL_LM", "auto_mapping": {"unsloth_fixed": True}},
        {"init_lora_weights": "gaussian", "loftq_config": None, "qalora_group_size": 16},
        {"rank_pattern": "gone", "alpha_pattern": None, "modules_to_save": []},
    ],
    ids=str,
)
def test_settings_of_training_change_nothing(tiny, folder, changes):
    expected = pgcli_logits(merged_model(tiny, folder))
    configure(folder, **changes)
    assert torch.equal(pgcli_logits(merged_model(tiny, folder)), expected)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "name", [f"{QUERY}.lora_B.weight", f"{PREFIX}model.multi_modal_projector.linear.bias"]
)
def test_a_tensor_that_is_not_finite_is_named(tiny, folder, name, value):
    def damage(tensor: torch.Tensor) -> torch.Tensor:
        damaged = tensor.clone()
        damaged.view(-1)[-1] = value
        return damaged

    is_full = name.endswith("bias")
    alter(folder, **{name: damage(torch.ones(48)) if is_full else damage})
    error, _ = refused(tiny, folder)
    assert f"{name} in adapter_model.safetensors has NaN or infinity" in str(error)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        (f"{QUERY}.lora_A.weight", None),
        (f"{QUERY}.lora_B.weight", None),
        (f"{QUERY}.lora_A.weight", lambda a: a.T),
        (f"{QUERY}.lora_B.weight", lambda b: b[:-1]),
        (f"{QUERY}.lora_B.weight", lambda b: b.to(torch.int8)),
        (f"{QUERY}.lora_magnitude_vector", torch.ones(64)),
        (f"{QUERY}.lora_A.second.weight", torch.ones(4, 48)),
        (f"{QUERY}.lora_embedding_A", torch.ones(4, 64)),
        (QUERY.replace(".1.", ".7.") + ".lora_A.weight", torch.ones(4, 48)),
        (f"{PREFIX}model.language_model.norm.lora_A.weight", torch.ones(4, 48)),
        (f"{PREFIX}model.language_model.norm.weight", torch.ones(47)),
        (f"{PREFIX}score.weight", torch.ones(2, 48)),
        (f"{PREFIX}model.multi_modal_projector.linear.bias", torch.ones(47)),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_tensor_that_does_not_fit_is_named(tiny, folder, name, change):
    alter(folder, **{name: change})
    error, read = refused(tiny, folder)
    module = name.removeprefix(PREFIX).split(".lora_")[0]
    assert module in str(error)
    assert not read


def test_an_adapter_without_matrices_is_an_error(tiny, folder):
    save_file({}, folder / WEIGHTS)
    assert "no LoRA matrices" in str(refused(tiny, folder)[0])


def test_an_adapter_of_another_model_names_its_base(tiny2, folder):
    configure(folder, base_model_name_or_path="google/paligemma-3b-pt-224")
    error, read = refused(tiny2, folder)  # fewer key-value heads
    assert "v_proj" in str(error)
    assert "google/paligemma-3b-pt-224" in error.hint
    assert not read


def test_a_pickle_is_an_error_with_a_hint_to_convert_it(tiny, folder):
    (folder / WEIGHTS).rename(folder / "adapter_model.bin")
    error, _ = refused(tiny, folder)
    assert "adapter_model.bin" in str(error)
    assert "save_pretrained" in error.hint


@pytest.mark.parametrize(
    ("file", "content"),
    [
        (WEIGHTS, None),
        (WEIGHTS, b""),
        (WEIGHTS, b"\xff" * 100),
        (WEIGHTS, (2**24).to_bytes(8, "little") + b" " * 2**24),
        ("adapter_config.json", None),
        ("adapter_config.json", b"{"),
        ("adapter_config.json", b"[]"),
    ],
    ids=range(7),
)
def test_a_broken_file_is_named(tiny, folder, file, content):
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_bytes(content)
    error, read = refused(tiny, folder)
    assert file in str(error)
    assert not read


def test_adapter_given_as_model_hints_at_the_adapter_option(folder):
    with pytest.raises(InvalidCheckpoint, match=r"is an adapter, not a model") as caught:
        read_config(folder)
    assert "--adapter" in caught.value.hint
