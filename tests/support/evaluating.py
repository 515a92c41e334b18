"""Runs `pgcli eval` on rows and truths in the working folder."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.support.command import Command
from tests.support.exporting import row, saved


def answers(*pairs: tuple[str, str], prompt: str = "what?", **more: Any) -> list[dict[str, Any]]:
    """Rows with these ids and answers."""
    return [
        row(n, id=id_, prompt=prompt, task="ask", answer=text, **more)
        for n, (id_, text) in enumerate(pairs)
    ]


def write(name: str, rows: Iterable[dict[str, Any]]) -> str:
    return str(saved(Path(name), rows))


def evaluate(cli: Command, *words: str) -> dict[str, Any]:
    code, out, err = cli("eval", *words, "--json", "-q")
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def refused(cli: Command, *words: str) -> str:
    code, _, err = cli("eval", *words)
    assert code == 2
    return err


def truth_of(*pairs: tuple[str, Any], name: str = "truth.jsonl", **more: Any) -> str:
    return write(name, [{"id": id_, "answer": answer, **more} for id_, answer in pairs])
