"""Result files with a column of an unknown time zone are refused, with and without pytz."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgcli.cli.main import main
from tests.support.time_zones import UNKNOWN_ZONE, pretended_pytz


@pytest.mark.parametrize("has_pytz", [False, True])
def test_result_file_with_an_unknown_time_zone_is_exit_2(
    has_pytz: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "pytz", pretended_pytz() if has_pytz else None)
    rows = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"id": ["a"], "when": pa.array([0], UNKNOWN_ZONE)}), rows)
    assert main(["view", str(rows), "-o", str(tmp_path / "page.html")]) == 2
    assert "cannot be read" in capsys.readouterr().err
