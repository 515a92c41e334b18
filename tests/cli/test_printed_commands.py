"""Every command that a run prints to be copied is run, and does what is said of it."""

import io
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from pgcli.results import read
from tests.support.runs import other_owner
from tests.support.stores import used_store

PRINTED = re.compile(r"(?:^hint: (?:[a-z ]+: )?|\()pgcli ([^\n)]+)", re.MULTILINE)
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
def folder(pretended) -> None:
    """The current folder, with images of which the second is broken."""
    Path("it is").mkdir()
    for number in range(4):
        Image.new("RGB", (8, 8)).save(f"it is/{number}.png")
    Path("it is/1.png").write_bytes(b"no image")


def repair() -> None:
    Image.new("RGB", (8, 8)).save("it is/1.png")


@pytest.mark.parametrize("line", RUNS.values(), ids=RUNS)
def test_printed_commands_run(line, cli):
    repair()
    with used_store():
        code, _, said = cli(line)
        assert code == 0, said
        printed = PRINTED.findall(said)
        assert len(printed) == ("s3://" not in line)
        for command in printed:
            code, _, said = cli(command)
            assert code == 0, f"{command}: {said}"


def test_retrying_lines_of_standard_input_needs_them_again(cli, monkeypatch):
    def pipe() -> None:
        lines = b"".join(b"it is/%d.png\n" % number for number in range(4))
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(lines), isatty=bool))

    pipe()
    code, _, said = cli("caption - -o rows.jsonl --model demo")
    assert code == 3
    assert "hint: the same command with --retry-errors retries the failed rows\n" in said
    repair()
    pipe()
    assert cli("caption - -o rows.jsonl --model demo --retry-errors")[0] == 0


def test_printed_command_of_an_output_in_use_runs(cli):
    with other_owner("rows.jsonl"):
        code, _, said = cli("caption 'it is' -o rows.jsonl --model demo")
        assert code == 12
        (command,) = PRINTED.findall(said)
        assert cli(command)[0] == 0


def test_rows_to_be_retried_in_shards_are_retried_by_one_command(cli):
    line = "caption 'it is' -o rows/ --model demo"
    for number in (0, 1):
        said = cli(f"{line} --shard {number}/2")[2]
    repair()
    code, _, said = cli(f"{line} --shard 0/2 --retry-errors")
    assert (code, "run the command without --shard" in said) == (2, True)
    assert cli(f"{line} --retry-errors")[0] == 0
    assert {row.error for row in read("rows/")} == {None}
