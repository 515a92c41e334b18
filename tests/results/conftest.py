"""Fixtures of the tests of exports: a folder of images and result files about them."""

from pathlib import Path

import pytest

from tests.support.exporting import detected, make_images, saved, segmented


@pytest.fixture
def folder(tmp_path) -> Path:
    return make_images(tmp_path / "photos")


@pytest.fixture
def boxes(folder, tmp_path) -> Path:
    return saved(tmp_path / "boxes.jsonl", detected(folder))


@pytest.fixture
def masks(folder, tmp_path) -> Path:
    return saved(tmp_path / "masks.jsonl", segmented(folder))
