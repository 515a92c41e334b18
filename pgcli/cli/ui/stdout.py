"""What a command that looks prints on standard output; foreign text in it is made harmless here."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable

import typer
from rich.console import Console, RenderableType

from pgcli.cli.ui.console import Facts, grid, is_terminal
from pgcli.printable import printable


def line(text: str) -> None:
    """Print one line."""
    typer.echo(printable(text))


def cells(texts: Iterable[str]) -> None:
    """Print a line of cells with tabs between them, for another program."""
    typer.echo("\t".join(map(printable, texts)))


def record(told: object) -> None:
    """Print one JSON object, all of it in ASCII."""
    typer.echo(json.dumps(told, indent=2))


def facts(told: Facts) -> None:
    """Print names and values: side by side on a terminal, else a line of two cells each."""
    if is_drawn():
        drawn(grid(told))
        return
    for fact in told:
        cells(fact)


def is_drawn() -> bool:
    """Whether a person looks at standard output, and tables are worth drawing."""
    return is_terminal(sys.stdout)


def drawn(*tables: RenderableType) -> None:
    """Draw tables, whose cells are `Text` of printable text, below each other."""
    Console(highlight=False, markup=False, emoji=False).print(*tables, sep="\n")
