"""The state folder has only the documented files, in each kind of run."""

import re
import signal
from collections.abc import Iterable
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from pgcli.output.lines import json_line
from pgcli.rows import RowSchema
from pgcli.run.state.folder import OWN
from pgcli.run.state.lines import errors_in, scan_lines
from tests.support.exporting import answer, refused
from tests.support.runs import finished, started, wait_until
from tests.support.stores import used_store
from tests.support.stub_runs import KINDS, Calls, die, finish, fresh, make_images, start

ROOT = Path(__file__).parents[2]
#: What stands for numbers and ids in the names of the documentation.
PLACES = {"ROW": r"\d{12}", "N": r"\d+"}
SHARD = re.compile(r"shard-\d+-of-\d+/")
TEMPORARY = re.compile(r"(\w+/)?\.[^/]+\.part")
STEP = 11  # a run is killed before each of so many changes of the disk
#: The options of runs that follow on each other, by kind.
RUNS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    **{kind: (output, [options]) for kind, (output, options) in KINDS.items()},
    "grown": ("rows.jsonl", [{"limit": 5}, {}]),
    "shards": ("rows/", [{"shard": "0/2", "rows_per_file": 3}, {"shard": "1/2"}]),
    "retry": ("rows.jsonl", [{}, {"retry_errors": True}]),
    "retry of a folder": ("rows/", [{"rows_per_file": 6}, {"retry_errors": True}]),
    "overwritten": ("rows.parquet", [{}, {"overwrite": True, "limit": 3}]),
}


def documented() -> dict[str, re.Pattern[str]]:
    """The documented names, each with its pattern."""
    text = (ROOT / "tests/repository/promises.md").read_text()
    section = text.partition("## The state folder\n")[2].partition("\n## ")[0]
    names = re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)
    places = re.compile("|".join(PLACES))
    return {
        name: re.compile(places.sub(lambda m: PLACES[m[0]], name.replace(".", r"\.")))
        for name in names
    }


def names_of(files: Iterable[str]) -> set[str]:
    """The documented names of files, also of shards; an undocumented file keeps its own name."""
    known = documented()
    return {
        next((name for name, pattern in known.items() if pattern.fullmatch(file)), file)
        for file in (SHARD.sub("", file) for file in files)
        if not TEMPORARY.fullmatch(file)
    }


def state_files(folder: Path, output: str) -> list[str]:
    state = folder / f"{output.rstrip('/')}.pgcli"
    return [file.relative_to(state).as_posix() for file in state.rglob("*") if file.is_file()]


def test_documentation_lists_all_state_files():
    names = documented()
    for name in names:
        sample = name.replace("ROW", "0" * 12).replace("N", "3")
        assert OWN.fullmatch(sample), name


@pytest.mark.parametrize("kind", RUNS)
def test_complete_run_has_only_documented_files(images, kind):
    output, runs = RUNS[kind]
    folder = fresh(images, "complete")
    for options in runs:
        code, said = finish(folder, output, **options)
        assert code in (0, 3), said
    names = names_of(state_files(folder, output))
    kept = {"run.json", "lock", "inputs/N.arrow", "inputs/images", "owner.json"}
    assert names == kept


@pytest.mark.slow
def test_killed_runs_have_only_documented_files(images):
    seen = set[str]()
    for output, runs in RUNS.values():
        for number in range(3, 1000, STEP):
            folder = fresh(images, "killed")
            for options in runs[:-1]:
                assert finish(folder, output, **options)[0] in (0, 3)
            code = start(folder, output, before=Calls(number, die), **runs[-1]).wait()
            seen |= names_of(state_files(folder, output))
            if code != -signal.SIGKILL:
                break
    assert seen == {*documented()}


def test_store_has_only_documented_files(tmp_path):
    make_images(tmp_path / "images", 4)

    def names(url: str) -> set[str]:
        prefix = f"{url.removeprefix('s3://').rstrip('/')}.pgcli/"
        return names_of(key.removeprefix(prefix) for key in [*files] if key.startswith(prefix))

    with used_store() as files:
        for options in ((), ("--shard", "0/1")):
            url = f"s3://bucket/{len(options)}/"
            run = finished("caption", tmp_path / "images", "-o", url, *options)
            assert run.returncode == 0, run.stderr
            assert names(url) == {"run.json", "inputs/N.arrow", "owner.json"}
        url = "s3://bucket/killed/"
        run = started("caption", tmp_path / "images", "-o", url, "--shard", "0/1", seconds=0.5)
        wait_until(lambda: "owner.json" in names(url))
        run.kill()
        run.communicate(timeout=100)
        local = {"lock", "inputs/images", "retried/images"}
        assert names(url) <= {*documented()} - local


def test_errors_in_kept_values_do_not_count():
    schema, kept = RowSchema(keep=("note",)), {"note": {"error": "mine"}}
    rows = [json_line(replace(row, kept=kept), schema).encode() for row in (answer(), refused())]
    assert errors_in(rows) == {refused().error: 1}
    assert scan_lines(BytesIO(b"".join(rows))).errors == {refused().error: 1}
