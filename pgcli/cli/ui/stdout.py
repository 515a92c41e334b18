"""Tables, lines and JSON on standard output; foreign text in them is made printable here."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable

import typer
from rich.console import Console, RenderableType

from pgcli.cli.ui.console import facts_table, is_terminal
from pgcli.run.progress.events import Facts
from pgcli.text import printable


def print_line(text: str) -> None:
    """Print one line."""
    typer.echo(printable(text))


def print_cells(texts: Iterable[str]) -> None:
    """Print one line of cells separated by tabs, for other programs."""
    typer.echo("\t".join(map(printable, texts)))


def print_json(value: object) -> None:
    """Print one JSON object in ASCII."""
    typer.echo(json.dumps(value, indent=2))


def print_facts(facts: Facts) -> None:
    """Print names and values: as a table on a terminal, else one line of two cells each."""
    if draws_tables():
        print_tables(facts_table(facts))
        return
    for fact in facts:
        print_cells(fact)


def draws_tables() -> bool:
    """Whether standard output is a terminal, on which tables are drawn."""
    return is_terminal(sys.stdout)


def print_tables(*tables: RenderableType) -> None:
    """Print tables below each other; their cells are `Text` of printable text."""
    Console(highlight=False, markup=False, emoji=False).print(*tables, sep="\n")
