"""What opening a table finds is stored, and taken by later processes of the same run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pgcli.cli.job import loading
from pgcli.cli.main import main
from pgcli.remote.errors import TOO_SLOW, RemoteError
from pgcli.sources import manifest
from pgcli.sources.manifest import ManifestSource
from pgcli.sources.name_filter import NameFilter
from pgcli.sources.open_sources import open_sources
from pgcli.sources.read_options import ReadOptions, ReadScan
from pgcli.sources.readers import bookmarks
from pgcli.sources.source import Source
from tests.support import pretend
from tests.support.source_formats import archive, json_lines, parquet, table
from tests.support.writable_stores import used_store

pytestmark = pytest.mark.usefixtures("clean_environment")
Scans = dict[str, dict[str, Any]]


@pytest.fixture(autouse=True)
def passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tables whose rows were counted; all count as large."""
    found: list[str] = []
    scan_rows = ManifestSource._scan_rows

    def noted(self: ManifestSource, track: Any) -> Any:
        found.append(self.name)
        return scan_rows(self, track)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ManifestSource, "_scan_rows", noted)
    monkeypatch.setattr(manifest, "MIN_STORED_ROWS", 0)
    monkeypatch.setattr(bookmarks, "EVERY", 5)
    return found


def opened(name: str, scans: Scans | None = None, **options: Any) -> Source:
    read: ReadScan = json.loads(json.dumps(scans or {})).get
    return open_sources([name], ReadOptions(read_scan=read, **options))


@pytest.mark.parametrize("make", [json_lines, table, parquet, archive])
@pytest.mark.parametrize("options", [{}, {"names": NameFilter(include=("*3*",))}])
def test_rows_are_the_same_and_are_not_counted_again(
    make: Callable[[], str], options: dict[str, Any], passes: list[str]
) -> None:
    first = opened(make(), **options)
    whole, scans = list(first), first.new_scans()
    again = opened(passes[0], scans, **options)
    assert passes == [passes[0]]
    assert (again.total, again.kinds, again.has_prompts) == (
        first.total,
        first.kinds,
        first.has_prompts,
    )
    assert list(again) == whole
    assert list(again.rows(4, 9)) == whole[4:9]
    assert again.new_scans() == {}


def test_changed_tables_other_options_and_damaged_scans_are_counted_again(
    passes: list[str],
) -> None:
    name = json_lines()
    scans = opened(name).new_scans()
    (key,) = scans
    opened(name, scans, id_column="image")
    opened(name, scans, keep=("image",))
    for damage in ({"total": "x"}, {"bookmarks": [[-1]]}, {"repeated": 3}, {"key": ""}):
        opened(name, {key: scans[key] | damage})
    opened(name, {key: {}})
    assert len(passes) == 8
    lines = Path(name).read_text().splitlines(keepends=True)
    Path(name).write_text("".join(lines[:9]))
    assert opened(name, scans).total == 4
    os.utime(name, (1, 1))
    opened(name, scans)
    assert len(passes) == 10


def test_a_table_whose_size_cannot_be_read_any_more_is_counted_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(*_: object) -> str:
        raise RemoteError(TOO_SLOW)

    source = opened(json_lines())
    monkeypatch.setattr(manifest, "scan_key", failing)
    assert source.new_scans() == {}


def test_small_tables_are_counted_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "MIN_STORED_ROWS", 10_000)
    assert opened(json_lines()).new_scans() == {}


@pytest.mark.parametrize(
    ("output", "options"), [("s3://bucket/rows/", ["--join"]), ("rows/", ["--join"]), ("rows/", [])]
)
def test_the_runs_of_an_output_count_the_rows_once(
    output: str, options: list[str], passes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "load_model", pretend.load_model)
    words = ["ask", json_lines(), "-o", output, "--model", "demo", "--quiet", "--workers", "0"]
    words += ["--max-errors", "100%", "--rows-per-file", "8", "--prompt", "x"]
    with used_store() as files:
        assert main([*words, *options, "--limit", "20"]) == 3
        assert main([*words, *options]) == 3
        assert len(passes) == 1
        assert any("files-scan-" in name for name in [*files, *map(str, Path().rglob("*"))])
        assert main([*words, "--overwrite"]) == 3
    assert len(passes) == 2
