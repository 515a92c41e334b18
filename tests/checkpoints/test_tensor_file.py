"""Files of tensors, written one tensor at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from pgcli.checkpoints.safetensors_files import TensorSpec, write_tensors


def write(file: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    specs = [TensorSpec(name, one.dtype, one.shape) for name, one in tensors.items()]
    write_tensors(file, specs, tensors.values(), metadata)


def test_scalars_transposed_and_empty_tensors_are_read_as_they_were(tmp_path: Path) -> None:
    given = {
        "a": torch.randn(3, 5).T,
        "step": torch.tensor(7.0),
        "b": torch.randn(2, dtype=torch.float64),
        "empty": torch.empty(0, 4),
    }
    write(tmp_path / "x.safetensors", given, {"key": "é"})
    with safe_open(tmp_path / "x.safetensors", framework="pt") as stored:
        assert stored.metadata() == {"key": "é"}
        for name, tensor in given.items():
            assert torch.equal(stored.get_tensor(name), tensor)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bytes_are_those_of_safetensors(tmp_path: Path, dtype: torch.dtype) -> None:
    given = {name: torch.randn(4, 3).to(dtype) for name in ("a.b", "layers.10.w", "layers.2.w")}
    write(tmp_path / "ours", given, {"format": "pt"})
    save_file(given, tmp_path / "theirs", {"format": "pt"})
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
