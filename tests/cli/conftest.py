"""Every test of the command line runs in a folder of its own."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def in_own_folder(workdir: Path) -> None:
    """An empty current folder, and no settings of the user."""
