"""Every command that a run prints to be copied is run, and does what is said of it."""

import re
from pathlib import Path

import pytest
from PIL import Image

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


def test_printed_command_of_an_output_in_use_runs(cli):
    with other_owner("rows.jsonl"):
        code, _, said = cli("caption 'it is' -o rows.jsonl --model demo")
        assert code == 12
        (command,) = PRINTED.findall(said)
        assert cli(command)[0] == 0
