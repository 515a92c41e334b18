"""Every test of the command line runs in a folder of its own."""

import pytest


@pytest.fixture(autouse=True)
def in_own_folder(workdir) -> None:
    """An empty current folder, and no settings of the user."""
