"""Hostile names and captions: every image is answered, and no raw control character is shown."""

import json
import os
import re
import unicodedata
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pgcli.inputs import Inventory
from tests.support import forkserver
from tests.support.awkward import AWKWARD_NAMES, drawing
from tests.support.runs import on_terminal

CAPTIONS = (
    "two\nlines",
    "a\ttab",
    "\x1b]0;title\x07",
    "\x1b[2J",
    "\x1b[31mred",
    "\x1b]52;c;cm0gLXJm\x07",
    "\x1b]8;;http://x\x1b\\here\x1b]8;;\x1b\\",
    "\x9b2J\x7f\r",
    "gpj.\u202eexe\u2066\u2028",
    "ze\u200bro\ufeff\U000e0041 \u2060\u00ad",
    "[/bold]",
    "[red]x",
    ":smiley:",
    "{path}{0}",
    "%s",
    "-rf",
    "--help",
    "=1+1",
    "<script>alert(1)</script>",
    '";',
    " blanks ",
    "n" * 255,
    "e\u0301 \u00e9",
    "\udcff",
    "\0",
    "",
)
#: The control sequences with which the program draws its own bar.
OWN = re.compile(r"\x1b\[(?:\?25[hl]|\d*A|2K|[0-9;]*m)|\r\n?")
DIRECTIONS = set(
    "\u061c\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    "\u200b\ufeff\U000e0041\u2060\u00ad"
)


def steering(shown: str) -> set[str]:
    """The control and invisible characters in the text, without line ends."""
    controls = {char for char in shown if unicodedata.category(char) == "Cc"}
    return (controls | set(shown) & DIRECTIONS) - {"\n"}


def readable(text: str) -> str:
    """The text as in a row, with characters that UTF-8 cannot encode replaced."""
    return text.replace("\udcff", "\ufffd")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """An image for every awkward name; there are more names than captions."""
    folder = tmp_path_factory.mktemp("names")
    names = [f"{name}.png" for name in AWKWARD_NAMES]
    for name in (*names, *(f"again/{name}" for name in names)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        drawing().save(folder / name)
    return folder


@pytest.fixture(scope="module")
def ids(folder) -> list[str]:
    found = [item.id for item in Inventory.scan([str(folder)])]
    assert len(found) == 2 * len(AWKWARD_NAMES) >= len(CAPTIONS)
    return found


@pytest.fixture(scope="module")
def captions(ids) -> list[str]:
    return list(islice(cycle(CAPTIONS), len(ids)))


@pytest.fixture(scope="module")
def environment(captions) -> dict[str, str]:
    """The environment in which the pretended model answers with the captions."""
    return {"PRETEND_ANSWERS": json.dumps(captions)}


def captioned(folder: Path, environment: dict[str, str], *options: object) -> bytes:
    """The standard output of a run in a pipe that exits with 0."""
    words = ["caption", str(folder), "--model", "demo", *map(str, options)]
    run = forkserver.run(words, env=os.environ | environment)
    assert run.returncode == 0, run.stderr
    assert not steering(run.stderr.decode())
    return run.stdout


def rows_in(written: bytes) -> list[dict[str, Any]]:
    """The rows of JSON lines, in which only a newline ends a line."""
    return [json.loads(line) for line in written.decode().removesuffix("\n").split("\n")]


def assert_answered(rows: list[dict[str, Any]], ids: list[str], captions: list[str]) -> None:
    assert [row["error"] for row in rows] == [None] * len(ids)
    assert [row["id"] for row in rows] == ids
    assert [row["answer"] for row in rows] == list(map(readable, captions))
    assert [row["boxes"][0]["label"] for row in rows] == list(map(readable, captions))


def test_text_in_a_pipe_has_two_lines_for_every_name(folder, ids, environment):
    shown = captioned(folder, environment, "--format", "text").decode()
    assert not steering(shown)
    assert shown.count("\n") == 2 * len(ids)


def test_no_name_and_no_caption_controls_the_terminal(folder, ids, environment):
    shown = on_terminal("caption", folder, "--model", "demo", "-q", **environment)
    assert not steering(shown.replace("\r\n", "\n"))
    assert shown.count("\n") == 2 * len(ids)
    for escaped in (r"\x1b[2J", r"\x1b]52;c;", r"\u202e", r"\x9b2J", "[red]x", "%s", "{path}{0}"):
        assert escaped in shown


def test_json_on_a_terminal_with_a_bar_is_ascii_and_the_same_rows(
    folder, ids, captions, environment
):
    shown = OWN.sub(
        "\n", on_terminal("caption", folder, "--format", "jsonl", "--model", "demo", **environment)
    )
    assert not steering(shown)
    lines = [line for line in shown.split("\n") if line.startswith("{")]
    assert all(line.isascii() for line in lines)
    assert_answered([json.loads(line) for line in lines], ids, captions)


def test_files_have_every_name_and_the_terminal_no_raw_text(
    folder, ids, captions, environment, tmp_path
):
    output = tmp_path / "rows.jsonl"
    shown = on_terminal(
        *("caption", folder, "--model", "demo", "-o", output, "--sidecar", ".txt"), **environment
    )
    assert "━" in shown
    assert not steering(OWN.sub("", shown))
    text = output.read_bytes().decode()
    assert_answered(rows_in(text.encode()), ids, captions)
    assert {char for char in text if unicodedata.category(char) == "Cc"} == {"\n"}
    assert len(text.splitlines()) == len(ids)  # splits at C1 and Unicode line ends too
    texts = [file for file in folder.rglob("*") if file.suffix == ".txt"]
    written = sorted(file.read_bytes().decode() for file in texts)
    lines = (" ".join(filter(None, map(str.strip, text.splitlines()))) for text in captions)
    assert written == sorted(readable(line) + "\n" for line in lines)


def test_a_parquet_file_has_every_name_and_caption(folder, ids, captions, environment, tmp_path):
    captioned(folder, environment, "-o", tmp_path / "rows.parquet")
    assert_answered(pq.read_table(tmp_path / "rows.parquet").to_pylist(), ids, captions)
