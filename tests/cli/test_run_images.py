"""Images are decoded while the model is loaded; what was decoded is answered once, in order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from pgcli.cli.job import loading
from pgcli.cli.job.run_images import DecodedAhead
from pgcli.cli.main import main
from pgcli.errors import InvalidCheckpoint
from pgcli.records import DecodedImage, Item
from tests.support import pretend
from tests.support.worker_processes import worker_processes

COUNT = 40  # processes decode from 32 images on


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(COUNT):
        Image.new("RGB", (8, 8 + number)).save(tmp_path / f"{number:02}.png")
    return tmp_path


def caption(folder: Path, *options: str) -> int:
    words = ["caption", str(folder), "--model", "demo", "--workers", "1", "-q", *options]
    return main([*words, "-o", str(folder / "rows.jsonl")])


def rows(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]


def test_decoding_begins_before_the_model_is_loaded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def load(*_: object) -> pretend.Engine:
        seen.append(len(worker_processes()))
        return pretend.Engine()

    monkeypatch.setattr(loading, "load_model", load)
    assert caption(folder) == 0
    assert seen == [1]
    assert [row["height"] for row in rows(folder)] == [8 + number for number in range(COUNT)]
    assert not worker_processes()


def test_model_that_cannot_be_loaded_leaves_no_process_and_no_output(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: object) -> pretend.Engine:
        raise InvalidCheckpoint("its weights are cut off")

    monkeypatch.setattr(loading, "load_model", load)
    assert caption(folder) == InvalidCheckpoint.exit_code
    assert not worker_processes()
    assert not (folder / "rows.jsonl").exists()


def test_resumed_run_decodes_only_missing_images(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    monkeypatch.setattr(
        loading, "load_model", lambda *_: seen.append(len(worker_processes())) or pretend.Engine()
    )
    assert caption(folder, "--limit", "35") == 0
    assert caption(folder) == 0
    assert seen == [1, 0]
    assert [row["index"] for row in rows(folder)] == [*range(COUNT)]


def images(count: int) -> Iterator[DecodedImage]:
    for number in range(count):
        item = Item(number, str(number), f"{number}.png", prompts=("a", "b"))
        yield DecodedImage(item, number, number, None, 0.0)


def test_images_of_left_out_items_are_left_out() -> None:
    ahead = DecodedAhead(images(5))
    left = (replace(item, prompts=("b",)) for item in ahead.items() if item.index % 2)
    assert [(one.width, one.item.prompts) for one in ahead.decode(left)] == [
        (1, ("b",)),
        (3, ("b",)),
    ]
