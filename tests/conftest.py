"""What several test files share: a tiny checkpoint, and the devices that this machine has."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test may reach out
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

import hypothesis
import pytest

hypothesis.settings.register_profile("unhurried", deadline=None)  # a busy machine is no fault
hypothesis.settings.load_profile("unhurried")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random checkpoint of a few thousand weights that nobody may change."""
    from tests.support.tiny import checkpoint_into

    return checkpoint_into(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def tiny2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same of the second generation, with a window and bounds that do bite."""
    from tests.support.tiny import checkpoint_into

    return checkpoint_into(tmp_path_factory.mktemp("tiny2"), generation=2)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Every device a design test must hold on."""
    import torch

    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("this machine has no CUDA device")
    return str(request.param)


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings of whoever runs the tests, and a known look, in processes of theirs too."""
    for name in os.environ:
        if name.startswith("PGCLI_") or name in ("FORCE_COLOR", "NO_COLOR", "COLUMNS"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
