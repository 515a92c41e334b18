"""Every command that a run prints to be copied is run, and does what is said of it."""

from __future__ import annotations

import io
import json
import re
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from pgcli.cli.main import main
from pgcli.results import read
from pgcli.run import model as running
from pgcli.run import task
from tests.support import pretend
from tests.support.runs import other_process
from tests.support.writable_stores import used_store

pytestmark = pytest.mark.usefixtures("clean_environment")
PRINTED = re.compile(r"(?:^hint: (?:[a-z ]+: )?|\()(pgcli [^\n)]+)", re.MULTILINE)
#: A part of each kind of run that prints commands, beside its sources and its output.
RUNS = {
    "lines": "caption 'it is' -o rows.jsonl --model demo",
    "parquet": "ask 'it is' --prompt a --prompt 'b \"c\"' -o 'my rows.parquet' --model=demo",
    "folder": "detect 'it is' --object 'a star' -o rows/ --rows-per-file 2 --model demo",
    "overwritten": "ocr 'it is' -o rows.jsonl --overwrite --model demo",
    "limited": "ask 'it is' --prompt a --prompt b -o rows.jsonl --limit 3 --model demo",
    "limited folder": "ask 'it is' --prompt a --prompt b -o rows/ --limit 3 --model demo",
    "lines by option": "caption -o rows.out --format jsonl --model demo -- 'it is'",
    "in a store": "caption 'it is' -o s3://bucket/rows/ --model demo",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder, with images of which the second is broken."""
    monkeypatch.setattr(running, "load_engine", pretend.load_engine)
    monkeypatch.chdir(tmp_path)
    Path("it is").mkdir()
    for number in range(4):
        Image.new("RGB", (8, 8)).save(f"it is/{number}.png")
    Path("it is/1.png").write_bytes(b"no image")


def run(line: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit code of a command as a shell reads it, and what it says."""
    capsys.readouterr()
    code = main(shlex.split(line)[line.startswith("pgcli") :])
    return code, capsys.readouterr().err


def repair() -> None:
    Image.new("RGB", (8, 8)).save("it is/1.png")


@pytest.mark.parametrize("line", RUNS.values(), ids=RUNS)
@pytest.mark.parametrize("environment", [{}, {"PGCLI_OVERWRITE": "1"}, {"PGCLI_JOIN": "1"}])
def test_printed_commands_run(
    line: str,
    environment: dict[str, str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with used_store():
        code, said = run(line, capsys)
        assert code == 3, said
        printed = PRINTED.findall(said)
        assert len(printed) == ("s3://" not in line)
        repair()
        for command in printed:
            code, said = run(command, capsys)
            assert code == 0, f"{command}: {said}"
            assert "rows with errors are asked again" in said
    if printed:
        output = shlex.split(line)[shlex.split(line).index("-o") + 1]
        rows = read(output)
        assert {row.error for row in rows} == {None}
        assert len(rows) == (3 if "--limit" in line else 8 if "--prompt" in line else 4)


def test_printed_retry_command_asks_rows_with_errors_only(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, said = run("caption 'it is' -o rows.jsonl --model demo --no-timing", capsys)
    before = Path("rows.jsonl").read_text().splitlines()
    lines = [line.replace("8 x 8", "another size") for line in before]
    Path("rows.jsonl").write_text("\n".join(lines) + "\n")
    repair()
    command = PRINTED.findall(said)[-1]
    assert run(command, capsys)[0] == 0
    answers = [row.answer for row in read("rows.jsonl")]
    assert answers == [f"an image of {'8 x 8' if n == 1 else 'another size'}" for n in range(4)]


def test_retrying_lines_of_standard_input_needs_them_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def pipe() -> None:
        lines = b"".join(b"it is/%d.png\n" % number for number in range(4))
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(lines), isatty=bool))

    pipe()
    code, said = run("caption - -o rows.jsonl --model demo", capsys)
    assert code == 3
    assert "with errors again: the same command with --retry-errors\n" in said
    repair()
    pipe()
    assert run("caption - -o rows.jsonl --model demo --retry-errors", capsys)[0] == 0


def test_printed_commands_of_embeddings_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "load_engine", task.load_engine)
    repair()
    code, said = run("embed 'it is' -o v.jsonl --model demo-towers", capsys)
    assert code == 0, said
    (command,) = PRINTED.findall(said)
    assert run(command, capsys)[0] == 0


def test_printed_command_of_an_output_in_use_runs(capsys: pytest.CaptureFixture[str]) -> None:
    with other_process("rows.jsonl", "run"):
        code, said = run("caption 'it is' -o rows.jsonl --model demo", capsys)
        assert code == 12
        (command,) = PRINTED.findall(said)
        assert run(command, capsys)[0] == 0


def test_printed_command_to_open_the_folder_of_a_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run("caption 'it is' -o rows.jsonl --model demo", capsys)
    Path("sub folder").mkdir()
    monkeypatch.chdir("sub folder")
    code, said = run("check ../rows.jsonl", capsys)
    assert code == 2
    target = re.search(r"hint: cd (.*) first", said)
    assert target is not None
    monkeypatch.chdir(shlex.split(target[1])[0])
    assert run("check rows.jsonl", capsys)[0] == 0


def test_rows_to_be_retried_in_shards_are_retried_by_one_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = "caption 'it is' -o rows/ --model demo"
    for number in (0, 1):
        _, said = run(f"{line} --shard {number}/2", capsys)
    repair()
    for option in ("--shard 0/2", "--join"):
        code, said = run(f"{line} {option} --retry-errors", capsys)
        assert (code, "leave out --join, --ray and --shard" in said) == (2, True)
    assert run(f"{line} --retry-errors", capsys)[0] == 0
    assert {row.error for row in read("rows/")} == {None}


def test_overwriting_and_retrying_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("caption 'it is' -o rows.jsonl --model demo", capsys)[0] == 3
    before = Path("rows.jsonl").read_bytes()
    code, said = run(
        "caption 'it is' -o rows.jsonl --model demo --overwrite --retry-errors", capsys
    )
    assert (code, Path("rows.jsonl").read_bytes()) == (2, before)
    assert "--overwrite does not go with --retry-errors" in said
    assert json.loads(before.splitlines()[1])["error"] == "not_an_image"
