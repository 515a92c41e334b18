"""The commands that make results something for others: view and export."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from pgcli.cli.options import AllowPrivateHosts, AllowUrls, Debug, Quiet, option, values
from pgcli.cli.program import PgcliCommand, app
from pgcli.views.exports import FORMATS


@app.command(
    cls=PgcliCommand,
    rich_help_panel="Look at answers",
    help="Make one page of results that opens from a disk: pictures, answers, boxes, errors.\n\n"
    "RESULTS are files or folders of rows, of a run that still goes on too; several are shown side "
    "by side. The page has everything in it and asks no network and no server for anything.",
    epilog="$ pgcli view captions.jsonl\n$ pgcli view captions.jsonl boxes.jsonl -o gallery.html",
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
            help="Look there for the pictures that rows name, and nowhere else.",
        ),
    ] = None,
    allow_urls: AllowUrls = False,
    allow_private_hosts: AllowPrivateHosts = False,
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
    from pgcli.cli.commands import view as viewing

    asked = viewing.GalleryOptions(
        output,
        assets,
        images,
        limit,
        size,
        draw,
        overwrite=overwrite,
        allow_urls=allow_urls,
        allow_private_hosts=allow_private_hosts,
    )
    viewing.view(results, asked, quiet=quiet)


@app.command(
    cls=PgcliCommand,
    rich_help_panel="Look at answers",
    help="Write answers as other tools read them.\n\n"
    "RESULTS is a JSON lines or Parquet file, or a folder of Parquet files, that an answering "
    "command wrote. Rows with errors are left out.",
    epilog="$ pgcli export boxes.jsonl --to coco -o boxes.json\n"
    "$ pgcli export captions.jsonl --to txt",
)
def export(
    results: Annotated[str, typer.Argument(metavar="RESULTS", hidden=True)],
    to: Annotated[
        str,
        option(
            "Output",
            "--to",
            metavar="FORMAT",
            once=False,
            choices=tuple(FORMATS),
            help=", ".join(FORMATS) + ".",
        ),
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
            help="yolo, imagefolder, fiftyone: link, copy or none of the pictures in the folder; "
            "what is no file is copied.",
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
    allow_urls: AllowUrls = False,
    allow_private_hosts: AllowPrivateHosts = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    from pgcli.cli.commands.export import ExportOptions
    from pgcli.cli.commands.export import export as exported
    from pgcli.cli.ui.console import Screen

    choices = ExportOptions(
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
        allow_urls=allow_urls,
        allow_private_hosts=allow_private_hosts,
    )
    if code := exported(results, to, output, choices, Screen(quiet=quiet)):
        raise typer.Exit(code)
