"""The drawings of docs/new-shape.md: hearts, and known shapes that are repeated beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from examples import new_shape


def rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_no_drawing_has_two_uses() -> None:
    uses = (new_shape.TRAIN, new_shape.NEW, new_shape.KNOWN, new_shape.REHEARSED)
    assert len({*uses[0], *uses[1], *uses[2], *uses[3]}) == sum(map(len, uses))


def test_rows_are_about_hearts_and_about_known_shapes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new_shape.main(tmp_path, 2)
    train = rows(tmp_path / "train.jsonl")
    known = [row for row in train if row["image"].startswith("rehearsed/")]
    assert len({row["image"] for row in known}) == 8
    assert len(known) == 8 * new_shape.REHEARSED_ROWS
    assert len(train) > len(known) + 20
    assert any("heart" in row.get("suffix", "") for row in train)
    assert not any("heart" in row.get("suffix", "") for row in known)
    for name in ("train", "questions", "known"):
        assert all((tmp_path / row["image"]).is_file() for row in rows(tmp_path / f"{name}.jsonl"))
