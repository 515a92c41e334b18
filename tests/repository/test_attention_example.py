"""examples/attention_from_scratch.py: its checks pass, and fail for wrong implementations."""

from __future__ import annotations

import re
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

from tests.support.examples import load_example


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_example("attention_from_scratch")


@pytest.mark.parametrize("with_diffusers", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_all_implementations_agree_and_the_mistakes_differ(
    script: ModuleType,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    with_diffusers: bool,
) -> None:
    if not with_diffusers:  # importing it takes seconds
        monkeypatch.setattr(script, "find_spec", lambda name: None)
    script.main()
    parts = re.split(r"^(\S.*):\n", capsys.readouterr().out, flags=re.MULTILINE)[1:]
    printed = {
        title: differences(lines) for title, lines in zip(parts[::2], parts[1::2], strict=True)
    }
    patches, maps, mistakes, group, batch = printed.values()
    assert list(patches) == ["one head at a time", "all heads at once", "fused, in pgcli"]
    assert list(maps) == [*patches, *["diffusers"] * with_diffusers]
    assert max(*patches.values(), *maps.values(), group["alone"]) < 1e-6
    assert mistakes["root of the width"] > 0.05
    assert mistakes["no transpose"] > 0.05
    assert batch["alone"] > 0.05


def differences(lines: str) -> dict[str, float]:
    """The printed difference of each output."""
    found = re.findall(r"^  (\S.*?)  +\(.*\) +difference (\S+)$", lines, re.MULTILINE)
    return {name: float(difference) for name, difference in found}


def test_an_implementation_that_differs_exits_with_an_error(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unscaled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return (query @ key.transpose(-2, -1)).softmax(dim=-1) @ value

    monkeypatch.setattr(script, "attend", unscaled)
    with pytest.raises(SystemExit, match="differ by"):
        script.main()


@pytest.mark.slow
@pytest.mark.parametrize("mistake", ["norm", "residual"])
def test_the_spatial_block_needs_norm_and_residual_sum(script: ModuleType, mistake: str) -> None:
    attention = script.three_ways()["all heads at once"]
    norm = nn.Identity() if mistake == "norm" else nn.GroupNorm(script.GROUPS, script.WIDTH)
    map_BDYX = torch.randn(2, script.WIDTH, 3, 4)
    with torch.no_grad():
        expected = script.of_diffusers(attention)(map_BDYX)
        output = script.SpatialAttention(attention, norm)(map_BDYX)
    output = output - map_BDYX if mistake == "residual" else output
    assert (output - expected).abs().max() > 0.05


def test_every_implementation_has_the_same_number_of_weights(script: ModuleType) -> None:
    width = script.WIDTH
    for way in script.three_ways().values():
        assert sum(x.numel() for x in way.parameters()) == 4 * (width + 1) * width


def test_a_rotated_feature_map_has_the_rotated_output(script: ModuleType) -> None:
    """Without position encodings, rotating the input rotates the output."""
    attention = script.three_ways()["fused, in pgcli"]
    block = script.SpatialAttention(attention, nn.GroupNorm(script.GROUPS, script.WIDTH))
    map_BDYX = torch.randn(2, script.WIDTH, 6, 5)
    with torch.no_grad():
        turned = block(map_BDYX.rot90(dims=(2, 3)))
        torch.testing.assert_close(turned, block(map_BDYX).rot90(dims=(2, 3)))
