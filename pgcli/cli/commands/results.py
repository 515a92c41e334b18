"""The commands that look at outputs: status and check."""

from __future__ import annotations

from typing import Annotated

import typer

from pgcli.cli.options import Debug, option
from pgcli.cli.program import PgcliCommand, app

Output = Annotated[str, typer.Argument(metavar="OUTPUT", hidden=True)]


@app.command(
    cls=PgcliCommand,
    rich_help_panel="Look at answers",
    help="Show how a run stands, while it goes on and after it.\n\n"
    "OUTPUT is the file or folder that its rows go to, as it was given to -o.",
    epilog="$ pgcli status captions.jsonl\n$ pgcli status captions.jsonl --json",
)
def status(
    output: Output,
    json: Annotated[bool, option("Output", "--json", help="Print one JSON object.")] = False,
    debug: Debug = False,
) -> None:
    from pgcli.cli.commands import status as standing

    standing.show(output, as_json=json)


@app.command(
    cls=PgcliCommand,
    rich_help_panel="Look at answers",
    help="Read all rows of an output again and compare them with the input.\n\n"
    "Every row of the input has to be there once, in its place. Ends with 5 where one is not. "
    "OUTPUT is the file or folder as it was given to -o.",
    epilog="$ pgcli check captions.jsonl",
)
def check(output: Output, debug: Debug = False) -> None:
    from pgcli.cli.commands import check as checking

    checking.check(output)
