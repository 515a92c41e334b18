"""The images of the runs that are disturbed."""

from pathlib import Path

import pytest

from tests.support.stub_runs import BROKEN, IMAGES, make_images


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("killed")
    make_images(folder / "images", IMAGES, broken=BROKEN)
    return folder
