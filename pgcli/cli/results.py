"""The commands about outputs: status, check and export."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from pgcli.cli.commands import Command, app
from pgcli.cli.options import Debug, option
from pgcli.views.exports import FORMATS

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
    help="Write answers as other tools read them.\n\n"
    "RESULTS is a JSON lines or Parquet file, or a folder of Parquet files, that an answering "
    "command wrote. Rows with errors are left out.",
    epilog="$ pgcli export boxes.jsonl --to coco -o boxes.json",
)
def export(
    results: Annotated[str, typer.Argument(metavar="RESULTS", hidden=True)],
    to: Annotated[
        str,
        option("Output", "--to", metavar="FORMAT", once=False, help=", ".join(FORMATS) + "."),
    ],
    output: Annotated[
        str | None,
        option(
            "Output",
            "--output",
            "-o",
            metavar="PATH",
            once=False,
            help="The file or folder to make. txt and caption write beside the pictures without.",
        ),
    ] = None,
    overwrite: Annotated[
        bool, option("Output", "--overwrite", once=False, help="Replace an earlier export.")
    ] = False,
    prompt: Annotated[
        str | None,
        option("Rows", "--prompt", metavar="TEXT", once=False, help="Only the rows of one prompt."),
    ] = None,
    labels: Annotated[
        str | None,
        option(
            "Boxes",
            "--labels",
            metavar="A,B|FILE",
            once=False,
            default="all, sorted",
            help="The labels in their order, or a file with one on each line.",
        ),
    ] = None,
    pictures: Annotated[
        Literal["link", "copy", "none"] | None,
        option(
            "Pictures",
            "--pictures",
            metavar="HOW",
            once=False,
            default="link",
            help="yolo, imagefolder, fiftyone: link, copy or none of the pictures in the folder.",
        ),
    ] = None,
    root: Annotated[
        str | None,
        option(
            "Pictures",
            "--root",
            metavar="DIR",
            once=False,
            help="coco, labelstudio: name pictures from this folder on.",
        ),
    ] = None,
    image_prefix: Annotated[
        str | None,
        option(
            "Pictures",
            "--image-prefix",
            metavar="URL",
            once=False,
            help="labelstudio: what stands before a picture's name in its address.",
        ),
    ] = None,
    prepend: Annotated[
        str | None,
        option("Texts", "--prepend", metavar="TEXT", once=False, help="Begin each text with this."),
    ] = None,
    append: Annotated[
        str | None,
        option("Texts", "--append", metavar="TEXT", once=False, help="End each text with this."),
    ] = None,
    existing: Annotated[
        Literal["skip", "overwrite", "append"] | None,
        option(
            "Texts",
            "--existing",
            metavar="WHAT",
            once=False,
            default="skip",
            help="What happens to a text that is there: skip, overwrite or append.",
        ),
    ] = None,
    csv_raw: Annotated[
        bool,
        option(
            "Texts",
            "--csv-raw",
            once=False,
            help="Write texts as they are, also those that a spreadsheet takes for formulas.",
        ),
    ] = False,
    quiet: Annotated[
        bool, option("Running", "--quiet", "-q", once=False, help="Say nothing but errors.")
    ] = False,
    debug: Debug = False,
) -> None:
    from pgcli.cli.exporting import Choices
    from pgcli.cli.exporting import export as exported
    from pgcli.cli.screen import Screen

    choices = Choices(
        prompt=prompt,
        overwrite=overwrite,
        labels=labels,
        pictures=pictures,
        root=root,
        image_prefix=image_prefix,
        prepend=prepend,
        append=append,
        existing=existing,
        csv_raw=csv_raw or None,
    )
    if code := exported(results, to, output, choices, Screen(quiet=quiet)):
        raise typer.Exit(code)
