"""The folder that sources of these tests are in."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def working_folder(tmp_path, monkeypatch) -> Path:
    """The current folder, which is empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
