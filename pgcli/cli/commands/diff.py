"""diff: print the rows that differ between two result files."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pgcli.cli.options import CliCall, command
from pgcli.cli.ui import stdout
from pgcli.cli.ui.console import BAR_DELAY, Screen, is_terminal
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
        "Format of the output; auto is text on a terminal, else jsonl.",
        panel="Where to",
        default="auto",
        own=True,
    )
    verbose: bool = same(
        RunningOptions, "verbose", help="Also print the rows that only one of the files has."
    )
    quiet: bool = same(RunningOptions, "quiet")


@command(
    "diff",
    "Rows are matched by id and prompt. pgcli compares answers, errors, and the labels and corners "
    "of boxes, and cosines and embeddings within 0.001, but not scores and times. It counts the "
    "rows that only one file has. The exit code is 5 if anything differs.",
    DiffOptions,
    examples="$ pgcli diff captions.jsonl again.jsonl --format text",
)
def diff(
    first: Annotated[str, typer.Argument(metavar="RESULTS", hidden=True)],
    second: Annotated[str, typer.Argument(metavar="RESULTS", hidden=True)],
    call: CliCall,
) -> None:
    screen = Screen(quiet=call.quiet, bar_delay=BAR_DELAY)
    run_diff((first, second), call.build(DiffOptions), screen)


def run_diff(names: tuple[str, str], options: DiffOptions, screen: Screen) -> None:
    """Print every pair of rows that differs. Raises Difference if there is one."""
    from pgcli.output.reader import read_results
    from pgcli.results.merge import is_same_answer, paired_rows

    is_text = options.format == "text" or (options.format == "auto" and is_terminal(sys.stdout))
    show = print_rows_as_text if is_text else print_rows_as_json
    counts: Counter[str] = Counter()
    with screen.progress("reading rows") as progress:
        files = [read_results(Path(name)) for name in names]
        for first, second in paired_rows(progress.track(files[0]), files[1]):
            if first is not None and second is not None and is_same_answer(first, second):
                counts["equal"] += 1
                continue
            side = names[first is None] if first is None or second is None else ""
            counts[f"only in {side}" if side else "different"] += 1
            if not side or options.verbose:
                show(first, second)
    summary = ", ".join(f"{count:,} {what}" for what, count in counts.items())
    if counts.keys() - {"equal"}:
        hint = f"pgcli view {shlex.join(names)} shows them"
        if not options.verbose and counts.keys() - {"equal", "different"}:
            hint += "; --verbose prints the rows of one file too"
        raise Difference(f"rows: {summary}", hint=hint)
    screen.info(f"rows: {summary or 'none'}")


def print_rows_as_json(first: Row | None, second: Row | None) -> None:
    """Print a line of JSON: the id, the prompt, and what each file says, null for no row."""
    from pgcli.rows import json_safe, json_text, prompt_of

    row = first if first is not None else second
    assert row is not None
    sides = {"first": compared_columns(first), "second": compared_columns(second)}
    line = {"id": row["id"], "prompt": prompt_of(row), **sides}
    stdout.print_line(json_text(json_safe(line)))


def compared_columns(row: Row | None) -> dict[str, Any] | None:
    """The columns of a row that are compared."""
    return None if row is None else {name: row[name] for name in COMPARED if name in row}


def shown_answer(row: Row) -> Iterator[str]:
    """The lines of a row's answer: its text and its boxes, or its scores or embedding."""
    from pgcli.output.text import BOX_TOKENS, box_line
    from pgcli.rows import json_text, read_boxes

    answer = row.get("answer")
    try:
        boxes = read_boxes(row.get("boxes") or ())
    except ValueError:  # of another program
        boxes = ()
    others = (row[name] for name in ("scores", "embedding") if name in row)
    text = json_text(next(others, None)) if answer is None else str(answer)
    yield " ".join(BOX_TOKENS.sub(" ", text).split()) if boxes else text
    yield from map(box_line, boxes)


def print_rows_as_text(first: Row | None, second: Row | None) -> None:
    """Print the id and the prompt, and what each file says in a line of its own."""
    from pgcli.rows import prompt_of

    row = first if first is not None else second
    assert row is not None
    stdout.print_line(f"{row['id']}: {prompt_of(row)}".rstrip(": "))
    for sign, side in (("-", first), ("+", second)):
        if side is not None:
            is_error = side["error"] is not None
            for text in [f"error {side['error']}"] if is_error else shown_answer(side):
                stdout.print_line(f"{sign} {text}")
