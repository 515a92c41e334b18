"""diff: the rows in which two result files differ."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pgcli.cli.options import Given, command
from pgcli.cli.ui import stdout
from pgcli.cli.ui.console import Screen, is_terminal
from pgcli.declare import opt, same
from pgcli.errors import Difference
from pgcli.run.request.options import RunningOptions

if TYPE_CHECKING:
    from pgcli.output.reader import Row

COMPARED = ("answer", "boxes", "scores", "labels", "embedding", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffOptions:
    """The options of `diff`."""

    format: Literal["auto", "jsonl", "text"] = opt(
        "auto is text on a terminal, else jsonl.", panel="Where to", default="auto", own=True
    )
    quiet: bool = same(RunningOptions, "quiet")


@command(
    "diff",
    "Rows are paired by id and prompt. Answers, errors, and the labels and corners of boxes are "
    "compared, cosines and embeddings within 0.001, not scores and times. The exit code is 5 if "
    "anything differs.",
    DiffOptions,
    examples="$ pgcli diff captions.jsonl again.jsonl --format text",
)
def diff(
    one: Annotated[str, typer.Argument(metavar="RESULTS", hidden=True)],
    other: Annotated[str, typer.Argument(metavar="RESULTS", hidden=True)],
    given: Given,
) -> None:
    run_diff((one, other), given.build(DiffOptions).format, Screen(quiet=given.quiet))


def run_diff(names: tuple[str, str], format: str, screen: Screen) -> None:
    """Print every pair of rows that differs. Raises Difference if there is one."""
    from pgcli.output.reader import read_results
    from pgcli.results.merge import is_same_answer, paired_rows

    is_text = format == "text" or (format == "auto" and is_terminal(sys.stdout))
    show = print_as_text if is_text else print_as_json
    counts: Counter[str] = Counter()
    with screen.progress("reading rows") as progress:
        first, second = (read_results(Path(name)) for name in names)
        for one, other in paired_rows(progress.track(first), second):
            if one is not None and other is not None and is_same_answer(one, other):
                counts["equal"] += 1
                continue
            side = names[one is None] if one is None or other is None else ""
            counts[f"only in {side}" if side else "different"] += 1
            show(one, other)
    found = ", ".join(f"{count:,} {what}" for what, count in counts.items())
    if counts.keys() - {"equal"}:
        raise Difference(f"rows: {found}", hint=f"pgcli view {shlex.join(names)} shows them")
    screen.info(f"rows: {found or 'none'}")


def print_as_json(one: Row | None, other: Row | None) -> None:
    """Print a line of JSON: the id, the prompt, and what each file says, null for no row."""
    from pgcli.rows import json_safe, json_text, prompt_of

    row = one if one is not None else other
    assert row is not None
    line = {"id": row["id"], "prompt": prompt_of(row), "one": said(one), "other": said(other)}
    stdout.print_line(json_text(json_safe(line)))


def said(row: Row | None) -> dict[str, Any] | None:
    """The columns that are compared."""
    return None if row is None else {name: row[name] for name in COMPARED if name in row}


def answer_text(row: Row) -> str:
    """The answer of a row, or what it has in place of one."""
    from pgcli.rows import json_text

    answer = row.get("answer")
    others = (row[name] for name in ("scores", "embedding") if name in row)
    return json_text(next(others, None)) if answer is None else str(answer)


def print_as_text(one: Row | None, other: Row | None) -> None:
    """Print the id and the prompt, and what each file says in a line of its own."""
    from pgcli.rows import prompt_of

    row = one if one is not None else other
    assert row is not None
    stdout.print_line(f"{row['id']}: {prompt_of(row)}".rstrip(": "))
    for sign, side in (("-", one), ("+", other)):
        if side is not None:
            is_error = side["error"] is not None
            text = f"error {side['error']}" if is_error else answer_text(side)
            stdout.print_line(f"{sign} {text}")
