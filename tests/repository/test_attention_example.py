"""examples/attention_from_scratch.py: its checks pass, and fail for wrong implementations."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

SCRIPT = Path(__file__).parents[2] / "examples" / "attention_from_scratch.py"


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location(SCRIPT.stem, SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_all_implementations_agree_and_the_mistakes_differ(
    script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    script.main()
    printed = capsys.readouterr().out
    titles = re.findall(r"^(\S.*):$", printed, re.MULTILINE)
    assert [title.split()[0] for title in titles] == ["On", "On", "Mistakes"]
    patches, on_map, mistakes = re.split(r"^\S.*:\n", printed, flags=re.MULTILINE)[1:]
    assert len(differences(patches, "(2, 16, 96)")) == 4
    assert len(differences(on_map, "(2, 96, 6, 5)")) == 3
    assert max(differences(patches, "(2, 16, 96)") + differences(on_map, "(2, 96, 6, 5)")) < 1e-5
    assert min(differences(mistakes, "(2, 16, 96)")[1:]) > 0.05
    assert "All ways agree" in mistakes


def differences(lines: str, shape: str) -> list[float]:
    """The printed differences of outputs that have the shape."""
    return [float(x) for x in re.findall(re.escape(shape) + r" +difference (\S+)", lines)]


def test_an_implementation_that_differs_exits_with_an_error(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unscaled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return (query @ key.transpose(-2, -1)).softmax(dim=-1) @ value

    monkeypatch.setattr(script, "attend", unscaled)
    with pytest.raises(SystemExit, match="differ by up to"):
        script.main()


def test_every_implementation_has_the_same_number_of_weights(script: ModuleType) -> None:
    width = script.WIDTH
    for way in script.three_ways().values():
        assert sum(x.numel() for x in way.parameters()) == 4 * (width + 1) * width


def test_a_rotated_feature_map_has_the_rotated_output(script: ModuleType) -> None:
    """Without position encodings, rotating the input rotates the output."""
    attention = script.three_ways()["fused"]
    map_BDYX = torch.randn(2, script.WIDTH, 6, 5)
    with torch.no_grad():
        turned = script.on_a_map(attention, map_BDYX.rot90(dims=(2, 3)))
        torch.testing.assert_close(turned, script.on_a_map(attention, map_BDYX).rot90(dims=(2, 3)))
