"""Runs `pgcli eval` on rows and truths in the working folder."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from pgcli.cli.main import main
from tests.support.exporting import row, saved

Capture = pytest.CaptureFixture[str]


def answers(*pairs: tuple[str, str], prompt: str = "what?", **more: Any) -> list[dict[str, Any]]:
    """Rows of these ids and answers."""
    return [
        row(n, id=id_, prompt=prompt, task="ask", answer=text, **more)
        for n, (id_, text) in enumerate(pairs)
    ]


def write(name: str, rows: Iterable[dict[str, Any]]) -> str:
    return str(saved(Path(name), rows))


def evaluate(capsys: Capture, *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["eval", *words, "--json", "-q"]) == 0, capsys.readouterr().err
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def refused(capsys: Capture, *words: str) -> str:
    capsys.readouterr()
    assert main(["eval", *words]) == 2
    return capsys.readouterr().err


def truth_of(*pairs: tuple[str, Any], name: str = "truth.jsonl", **more: Any) -> str:
    return write(name, [{"id": id_, "answer": answer, **more} for id_, answer in pairs])
