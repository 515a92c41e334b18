"""The commands that look at outputs: status, check and view."""

from __future__ import annotations

from typing import Annotated

import typer

from pgcli.cli import values
from pgcli.cli.commands import Command, app
from pgcli.cli.options import Debug, Quiet, option

Output = Annotated[str, typer.Argument(metavar="OUTPUT", hidden=True)]


@app.command(
    cls=Command,
    help="Show how a run stands, while it goes on and after it.\n\n"
    "OUTPUT is the file or folder that its rows go to, as it was given to -o.",
    epilog="$ pgcli status rows.jsonl",
)
def status(
    output: Output,
    json: Annotated[bool, option("Output", "--json", help="Print one JSON object.")] = False,
    debug: Debug = False,
) -> None:
    from pgcli.cli import standing

    standing.show(output, as_json=json)


@app.command(
    cls=Command,
    help="Read all rows of an output again and compare them with the input.\n\n"
    "Every row of the input has to be there once, in its place. Ends with 5 where one is not. "
    "OUTPUT is the file or folder as it was given to -o.",
    epilog="$ pgcli check rows.jsonl",
)
def check(output: Output, debug: Debug = False) -> None:
    from pgcli.cli import checking

    checking.check(output)


@app.command(
    cls=Command,
    help="Make one page of results that opens from a disk: pictures, answers, boxes, errors.\n\n"
    "RESULTS are files or folders of rows, of a run that still goes on too; several are shown side "
    "by side. The page has everything in it and asks no network and no server for anything.",
    epilog="$ pgcli view rows.jsonl -o gallery.html",
)
def view(
    results: Annotated[list[str], typer.Argument(metavar="RESULTS", hidden=True)],
    output: Annotated[
        str | None,
        option(
            "Output", "--output", "-o", metavar="FILE", default="RESULTS.html", help="The page."
        ),
    ] = None,
    assets: Annotated[
        str | None,
        option(
            "Output",
            "--assets",
            metavar="DIR",
            help="Put the pictures in a folder beside the page: for very many.",
        ),
    ] = None,
    overwrite: Annotated[
        bool, option("Output", "--overwrite", help="Replace a page that is there.")
    ] = False,
    images: Annotated[
        str | None,
        option(
            "Input",
            "--images",
            metavar="DIR",
            help="Look there for the pictures that rows name, not in this folder.",
        ),
    ] = None,
    limit: Annotated[
        int | None,
        option(
            "Input",
            "--limit",
            metavar="N",
            parser=values.number(1),
            help="Only the first N rows of each.",
        ),
    ] = None,
    size: Annotated[
        int | None,
        option(
            "Output",
            "--size",
            metavar="PX",
            parser=values.number(16, 4096),
            default="1024 to 320, by how many there are",
            help="Longest side of the pictures.",
        ),
    ] = None,
    draw: Annotated[
        str | None,
        option(
            "Output",
            "--draw",
            metavar="DIR",
            help="Paint boxes and masks on copies of the pictures in full size, too.",
        ),
    ] = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    from pgcli.cli import viewing

    asked = viewing.Asked(output, assets, images, limit, size, draw, overwrite=overwrite)
    viewing.view(results, asked, quiet=quiet)
