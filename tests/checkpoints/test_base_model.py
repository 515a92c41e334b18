"""An adapter that was made for other weights is named with both; the same weights say nothing."""

import shutil
import warnings
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from pgcli.checkpoints.adapters import fingerprint_of, warn_of_another_base
from pgcli.checkpoints.find import Checkpoint
from pgcli.checkpoints.safetensors_files import read_metadata
from pgcli.engine import loader
from pgcli.training.lora import LoraSettings, save_adapter
from tests.support.adapted_models import adapted

SETTINGS = LoraSettings(rank=2)
EMBEDDING = "language_model.model.embed_tokens.weight"


def copy_of(base: Path, folder: Path, change) -> Path:
    """The checkpoint in another folder, with changed tensors."""
    shutil.copytree(base, folder)
    weights = folder / "model.safetensors"
    save_file(change(load_file(weights)), weights)
    return folder


def sharded(base: Path, folder: Path) -> Path:
    copy_of(base, folder, lambda tensors: tensors)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    for number, names in enumerate((sorted(tensors)[::2], sorted(tensors)[1::2])):
        save_file({name: tensors[name] for name in names}, folder / f"part-{number}.safetensors")
    return folder


SAME = {
    "moved": lambda tensors: tensors,
    "in bfloat16": lambda tensors: {name: t.bfloat16() for name, t in tensors.items()},
    "with a stored head": lambda tensors: (
        tensors | {"language_model.lm_head.weight": tensors[EMBEDDING].clone()}
    ),
}
OTHER = {
    "other weights": lambda tensors: {name: t + 0.01 for name, t in tensors.items()},
    "one other tensor": lambda tensors: tensors | {EMBEDDING: tensors[EMBEDDING] + 1},
}


def adapter_of(base: Path, folder: Path, *, fingerprint: str | None, name: str) -> Checkpoint:
    model = adapted(base, SETTINGS)
    save_adapter(model, SETTINGS, folder, base_model=name, fingerprint=fingerprint)
    return Checkpoint("adapter", folder)


def messages(adapter: Checkpoint, model: Checkpoint) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_another_base(adapter, model)
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize("by", ["fingerprint", "folder"])
@pytest.mark.parametrize("kind", [*SAME, *OTHER, "in shards"])
def test_fingerprint_ignores_folder_and_file_names(base, tmp_path, kind, by):
    folder = tmp_path / "moved"
    if kind == "in shards":
        sharded(base, folder)
    else:
        copy_of(base, folder, (SAME | OTHER)[kind])
    fingerprint = fingerprint_of(base) if by == "fingerprint" else None
    name = "gone/base" if by == "fingerprint" else str(base)
    adapter = adapter_of(base, tmp_path / "adapter", fingerprint=fingerprint, name=name)
    found = messages(adapter, Checkpoint("moved", folder))
    if kind in OTHER:
        (message,) = found
        assert f"was trained on {name}, but moved has different weights" in message
    else:
        assert not found


@pytest.mark.parametrize(
    ("name", "model", "is_said"),
    [
        ("google/paligemma-3b-pt-224", "google/paligemma-3b-mix-224", True),
        ("/home/somebody/base", "./m", True),
        ("google/paligemma-3b-pt-224", "models/paligemma-3b-pt-224", False),
        ("google/paligemma-3b-pt-224", "google/paligemma-3b-pt-224", False),
        ("", "m", False),
        ("not a name at all?", "m", True),
    ],
)
def test_missing_base_model_is_compared_by_name(tiny, tmp_path, name, model, is_said):
    adapter = adapter_of(tiny, tmp_path / "adapter", fingerprint=None, name=name)
    found = messages(adapter, Checkpoint(model, tiny))
    assert [name in message and model in message for message in found] == [True] * is_said


def test_loading_an_adapter_on_another_model_warns(tiny, tmp_path):
    other = copy_of(tiny, tmp_path / "other", OTHER["other weights"])
    adapter = adapter_of(tiny, tmp_path / "a", fingerprint=fingerprint_of(tiny), name="tiny")
    assert read_metadata(tmp_path / "a" / "adapter_model.safetensors")["format"] == "pt"
    with pytest.warns(UserWarning, match="was trained on tiny, but other has different weights"):
        loader.open_engine(Checkpoint("other", other), adapter=adapter, device="cpu", batch_size=1)
