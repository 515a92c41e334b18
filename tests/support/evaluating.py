"""Runs `pgcli eval` on rows and truths in the working folder."""

import csv
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

from tests.support.exporting import row, saved
from tests.support.runs import Command


def answers(*pairs: tuple[str, str], prompt: str = "what?", **more: Any) -> list[dict[str, Any]]:
    """Rows with these ids and answers."""
    return [
        row(n, id=id_, prompt=prompt, task="ask", answer=text, **more)
        for n, (id_, text) in enumerate(pairs)
    ]


def write(name: str, rows: Iterable[dict[str, Any]]) -> str:
    return str(saved(Path(name), rows))


def save(name: str, rows: list[dict[str, Any]]) -> str:
    """The rows as a manifest of the kind of its ending."""
    if name.endswith(".jsonl"):
        return write(name, rows)
    if name.endswith(".parquet"):
        parquet.write_table(pyarrow.Table.from_pylist(rows), name)
        return name
    with Path(name).open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], delimiter="\t" if name.endswith("tsv") else ",")
        writer.writeheader()
        cells = [
            {k: v if isinstance(v, str) else json.dumps(v) for k, v in r.items()} for r in rows
        ]
        writer.writerows(cells)
    return name


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
