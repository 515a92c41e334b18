"""A run that resumes knows its input: rows of other images are never taken over."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from PIL import Image
from pyarrow import parquet

from pgcli.cli.main import main
from tests.support.runs import finished, started, wait_until
from tests.support.runs import saved as saved_indices


def draw(file: Path, number: int) -> None:
    """An image whose size follows from the number, so that its answer does too."""
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8 + number, 9), (number % 256, 0, 0)).save(file)


def folder_of(count: int, folder: Path, *, first: int = 0) -> Path:
    for number in range(count):
        draw(folder / f"{number:02}.png", first + number)
    return folder


def write_paths(manifest: Path, count: int) -> Path:
    """A manifest of the first images of the folder `photos` beside it."""
    write_lines(manifest, [{"image": f"photos/{number:02}.png"} for number in range(count)])
    return manifest


def outcome(*arguments: object, cwd: Path | None = None) -> tuple[int, str]:
    """The exit code and standard error of a run."""
    run = finished(*arguments, cwd=cwd)
    return run.returncode, run.stderr.decode()


def read_rows(output: Path) -> list[dict[str, Any]]:
    from pgcli.output.reader import read_results

    return [dict(row) for row in read_results(output)]


# --- images that are gone


@pytest.mark.parametrize("gone", [range(8), range(8, 12)])
def test_saved_images_or_the_others_alone_may_be_missing(tmp_path: Path, gone: range) -> None:
    folder_of(12, tmp_path / "photos")
    command = ("caption", write_paths(tmp_path / "m.jsonl", 12), "-o", tmp_path / "rows.jsonl")
    assert outcome(*command, "--limit", 8)[0] == 0
    for number in gone:
        (tmp_path / "photos" / f"{number:02}.png").unlink()
    assert outcome(*command)[0] == (0 if gone.start == 0 else 3)


# --- prompts


@pytest.mark.parametrize("rows_saved", [2, 6])
def test_prompt_that_begins_another_is_another_prompt(tmp_path: Path, rows_saved: int) -> None:
    folder_of(6, tmp_path / "photos")
    output, manifest = tmp_path / "rows.jsonl", tmp_path / "m.jsonl"
    write_lines(
        manifest,
        [{"image": f"photos/{k:02}.png", "prompt": "is there a cat and a dog"} for k in range(6)],
    )
    assert outcome("ask", manifest, "-o", output, "--limit", rows_saved)[0] == 0
    write_lines(
        manifest, [{"image": f"photos/{k:02}.png", "prompt": "is there a"} for k in range(6)]
    )
    code, err = outcome("ask", manifest, "-o", output)
    assert code == 13
    assert "the input is not the one" in err
    assert main(["check", str(output)]) == 5


def test_region_of_a_prompt_is_compared(tmp_path: Path) -> None:
    folder_of(4, tmp_path / "photos")
    output = tmp_path / "rows.jsonl"
    command = ("ask", tmp_path / "photos", "--prompt", "what?", "-o", output)
    assert outcome(*command, "--region", "1,1,5,5", "--limit", 2)[0] == 0
    assert outcome(*command, "--region", "1,1,5,5")[0] == 0
    assert {row["prompt"][:5] for row in read_rows(output)} == {"what?"}
    rows = [
        row | {"prompt": "what? <loc0001><loc0002><loc0003><loc0004>"} for row in read_rows(output)
    ]
    assert main(["check", str(output)]) == 0
    write_lines(output, rows)
    assert main(["check", str(output)]) == 5


# --- what a row depends on


def make_manifest(file: Path, **changes: Any) -> None:
    """Six rows about images, of which the second differs by `changes`."""
    rows: list[dict[str, Any]] = [
        {
            "image": f"photos/{k:02}.png",
            "id": f"id{k}",
            "region": [1, 1, 5, 5],
            "choices": ["a", "b"],
            "note": {"k": k},
        }
        for k in range(6)
    ]
    rows[1] |= changes
    write_lines(file, rows)


CHANGES = {
    "image": {"image": "photos/07.png"},
    "region": {"region": [2, 2, 5, 5]},
    "choices": {"choices": ["a", "c"]},
    "keep": {"note": {"k": 9}},
    "id": {"id": "other"},
}


@pytest.mark.parametrize(
    "state",
    ["begun", pytest.param("complete", marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ["rows.jsonl", pytest.param("rows/", marks=pytest.mark.slow)])
def test_changed_manifest_is_refused(tmp_path: Path, name: str, change: str, state: str) -> None:
    folder_of(8, tmp_path / "photos")
    manifest, output = tmp_path / "m.jsonl", tmp_path / name
    make_manifest(manifest)
    made = manifest.stat().st_mtime_ns
    command = ("ask", manifest, "--prompt", "what?", "--choices-column", "choices")
    command = (*command, "--keep", "note", "-o", f"{tmp_path}/{name}")
    assert outcome(*command, *([] if state == "complete" else ["--limit", 4]))[0] == 0
    make_manifest(manifest, **CHANGES[change])
    for _ in range(2):  # a run that is refused does not disarm the guard
        code, err = outcome(*command)
        assert code == 13, err
        assert "the input is not the one" in err
    make_manifest(manifest)
    os.utime(manifest, ns=(made, made))
    code, err = outcome(*command)
    assert code == 0, err
    assert len(read_rows(output)) == 6


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
def test_replaced_bytes_of_a_table_are_refused_after_a_retry_too(tmp_path: Path, name: str) -> None:
    table, output = tmp_path / "t.parquet", f"{tmp_path}/{name}"
    folder_of(6, tmp_path / "one")
    folder_of(6, tmp_path / "two", first=30)
    write_table(table, [*images_in(tmp_path / "one")[:5], b"broken"])
    command = ("caption", table, "-o", output)
    assert outcome(*command)[0] == 3
    write_table(table, images_in(tmp_path / "two"))
    for options in [], ["--retry-errors"], [], ["--retry-errors"]:
        code, err = outcome(*command, *options)
        assert (code, "t.parquet has" in err) == (13, True), err
    assert main(["check", output]) == 5


def write_table(file: Path, images: list[bytes]) -> None:
    ids = [f"id{k}" for k in range(len(images))]
    parquet.write_table(pyarrow.table({"image": images, "id": ids}), file)


def images_in(folder: Path) -> list[bytes]:
    return [file.read_bytes() for file in sorted(folder.iterdir())]


def test_images_that_change_after_a_kill_are_noticed(tmp_path: Path) -> None:
    """The rows since the last sync are compared as the others are."""
    folder, output = folder_of(40, tmp_path / "photos"), tmp_path / "rows.jsonl"
    run = started("caption", folder, "-o", output, seconds=0.05)
    wait_until(lambda: len(saved_indices(output)) > 5)
    run.kill()
    run.communicate(timeout=60)
    draw(folder / "03.png", 90)
    code, err = outcome("caption", folder, "-o", output)
    assert code == 13
    assert "03.png has changed" in err


def write_lines(file: Path, rows: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
