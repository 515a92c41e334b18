"""Output in an object store: the same rows as in a folder, whatever fails or is killed."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from pgcli.cli.main import main
from pgcli.run import model as running
from tests.support import pretend
from tests.support.stores import (
    Denied,
    Files,
    Trouble,
    Unconditional,
    shorten_retries,
    unreliable_store,
    used_store,
)

pytestmark = pytest.mark.usefixtures("clean_environment")
OPTIONS = ("--model", "demo", "--quiet", "--no-timing", "--rows-per-file", "4", "--workers", "0")
URL = "s3://bucket/rows/"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> None:
    """The current folder with ten images and a broken one, a fast fake model, and short pauses
    between retries."""
    monkeypatch.setattr(running, "load_engine", pretend.load_engine)
    shorten_retries(monkeypatch)
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    for number in range(10):
        Image.new("RGB", (8, 8 + number)).save(f"photos/{number}.png")
    Path("photos/7b.png").write_bytes(b"no image")


@pytest.fixture
def store() -> Iterator[Files]:
    with used_store() as files:
        yield files


def caption(*options: str, output: str = URL) -> int:
    return main(["caption", "photos", "-o", output, *OPTIONS, *options])


def parts(files: Files) -> dict[str, pa.Table]:
    """The tables in the store, by file name."""
    prefix = "bucket/rows/"
    return {
        name.removeprefix(prefix): pq.read_table(io.BytesIO(files[name]))
        for name in sorted(files)
        if name.startswith(prefix)
    }


def rows(files: Files) -> pa.Table:
    return pa.concat_tables(parts(files).values())


def status(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["status", URL, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_rows_equal_a_folders_and_a_longer_run_resumes(store, capsys):
    assert caption(output="alone/") == 3
    assert caption("--limit", "6") == 0
    assert [table.num_rows for table in parts(store).values()] == [4, 2]
    assert caption() == 3
    assert list(parts(store)) == [f"part-{number:06}.parquet" for number in range(3)]
    assert rows(store) == pq.read_table("alone")
    found = status(capsys)
    assert (found["state"], found["rows"], found["exit_code"]) == ("complete", 11, 3)
    before = dict(store)
    assert caption("--shard", "0/1") == 3
    assert {name: store[name] for name in parts_of(before)} == parts_of(before)
    assert not [name for name in store if "open/" in name]


def parts_of(files: Files) -> Files:
    return {name: data for name, data in files.items() if name.endswith(".parquet")}


def test_shards_divide_the_files(store, capsys):
    assert caption("--shard", "1/2") == 0
    assert list(parts(store)) == ["part-000001.parquet"]
    found = status(capsys)
    assert [shard["state"] for shard in found["shards"]] == ["waiting", "complete"]
    assert main(["status", "s3://other/rows/"]) == 2
    assert "s3://other/rows.pgcli/ cannot be used" in capsys.readouterr().err
    assert caption("--shard", "0/2") == 3
    assert rows(store)["index"].to_pylist() == list(range(11))


def test_other_settings_are_an_error_and_overwrite_replaces_them(store, capsys):
    assert caption() == 3
    before = set(store)
    words = ["ask", "photos", "--prompt", "What is it?", "-o", URL, *OPTIONS]
    assert main(words) == 13
    assert f"{URL} belongs to a run with other settings" in capsys.readouterr().err
    assert set(store) == before
    assert main([*words, "--overwrite"]) == 3
    assert set(rows(store)["task"].to_pylist()) == {"ask"}
    store["bucket/rows/part-000007.parquet"] = b"mine"
    before = dict(store)
    assert main([*words, "--overwrite"]) == 13
    assert f"{URL}part-000007.parquet was not written by the run" in capsys.readouterr().err
    assert store == before
    del store["bucket/rows.pgcli/run.json"]
    assert main(words) == 13


def test_store_without_conditional_puts_takes_whole_runs_and_shards():
    with used_store(Unconditional) as files:
        assert caption("--shard", "0/2") == 3
        assert caption("--shard", "1/2") == 0
        assert rows(files)["index"].to_pylist() == list(range(11))
    with used_store(Unconditional) as files:
        assert caption("--limit", "4") == 0
        assert caption() == 3
        assert rows(files)["index"].to_pylist() == list(range(11))


def test_store_that_denies_access_ends_the_run(capsys):
    with used_store(Denied):
        assert caption() == 14
    assert "permission to list, read, write and delete" in capsys.readouterr().err


@pytest.mark.parametrize("how", [503, 429, "reset"])
def test_store_that_keeps_failing_is_never_a_usage_error(how, capsys, monkeypatch):
    shorten_retries(monkeypatch, 0.05)
    with unreliable_store() as server:
        assert caption("--limit", "4") == 0
        server.files |= {
            f"bucket/photos/{file.name}": file.read_bytes() for file in Path("photos").iterdir()
        }
        before = dict(server.files)
        commands = {
            "GET .*list-type": ["caption", "s3://bucket/photos", "--allow-urls", "-o", "new.jsonl"],
            "GET .*1.png": [
                "caption",
                "s3://bucket/photos/1.png",
                "--allow-urls",
                "-o",
                "new.jsonl",
            ],
            "GET .*run.json": ["caption", "photos", "-o", URL],  # the record of the run to resume
            "GET .*part-": ["status", URL],
            "GET .*rows.pgcli": ["status", URL],
        }
        for pattern, words in commands.items():
            server.troubles[:] = [Trouble(pattern, how)]
            options = OPTIONS if words[0] == "caption" else ()
            assert main([*words, *options]) == 14, pattern
            err = capsys.readouterr().err
            assert "s3://bucket/" in err
            assert "nothing" not in err
            assert "Traceback" not in err
            assert not Path("new.jsonl").exists()
        assert {n: d for n, d in server.files.items() if "owner.json" not in n} == {
            n: d for n, d in before.items() if "owner.json" not in n
        }
        server.troubles.clear()
        assert caption() == 3
        assert rows(server.files)["index"].to_pylist() == list(range(11))


EXPIRED = b"<Error><Code>ExpiredToken</Code><Message>The token has expired.</Message></Error>"


@pytest.mark.parametrize(
    ("pattern", "saved"),
    [
        ("PUT .*/part-000001", 8),  # the second file of the output; the state has its rows
        ("PUT .*/part-000000", 4),
        ("PUT .*/part-000002", 11),  # at the end of the run; the state has the rows
        ("PUT .*/part-000001|PUT .*/open/", 4),
        ("PUT .*/part-000002|PUT .*/open/", 8),
    ],
)
@pytest.mark.parametrize("status_code", [400, 403])
def test_rows_that_the_store_did_not_take_are_not_counted(pattern, saved, status_code, capsys):
    with unreliable_store() as server:
        server.troubles.append(Trouble(pattern, status_code, body=EXPIRED))
        assert caption("--log-format", "json", "--no-quiet") == 14
        err = capsys.readouterr().err
        notice = f"stopped with {saved} rows saved" if saved else "stopped before the first row"
        assert notice in err
        assert "credentials" in err
        events = [json.loads(line) for line in err.splitlines()]
        (summary,) = [event for event in events if event["event"] == "summary"]
        assert summary["rows"] == saved
        assert sum(summary["errors"].values()) == (saved == 11)
        assert not saved or status(capsys)["rows"] == saved
        server.troubles.clear()
        assert caption() == 3
        assert rows(server.files)["index"].to_pylist() == list(range(11))
