"""Fixtures of the tests of exports and pages: images, result files, pages and a browser."""

from pathlib import Path

import pytest

from tests.support.exporting import detected, make_images, saved, segmented
from tests.support.pages import browser, drawn, gallery, open_page, sample_rows  # noqa: F401


@pytest.fixture
def folder(tmp_path) -> Path:
    return make_images(tmp_path / "photos")


@pytest.fixture
def boxes(folder, tmp_path) -> Path:
    return saved(tmp_path / "boxes.jsonl", detected(folder))


@pytest.fixture
def masks(folder, tmp_path) -> Path:
    return saved(tmp_path / "masks.jsonl", segmented(folder))


@pytest.fixture
def page(tmp_path) -> Path:
    """A page of four answers and two errors."""
    drawn(tmp_path, 5)
    return gallery(tmp_path, sample_rows())
