"""The options of the panel Output."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

from pgcli.cli.option import option
from pgcli.cli.options import values
from pgcli.state.shard import MAX_CHUNK_ROWS
from pgcli.views.text_files import ExistingTexts

_output = partial(option, "Output")


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """Where rows and side outputs are written, and in which format."""

    output: Annotated[
        str,
        _output(
            "--output",
            "-o",
            metavar="FILE",
            help="A .jsonl or .parquet file, or folder/ for Parquet files, here or at s3://, gs:// "
            "or az://; - is standard output.",
        ),
    ] = "-"
    format: Annotated[
        Literal["auto", "jsonl", "text"],
        _output("--format", help="auto follows the file's ending, and is text on a terminal."),
    ] = "auto"
    draw: Annotated[
        str | None,
        _output(
            "--draw",
            metavar="DIR",
            help="Draw boxes and masks on copies of the images, in this folder.",
        ),
    ] = None
    view: Annotated[
        str | None,
        _output(
            "--view",
            metavar="PAGE",
            help="Write a page of the answers, as pgcli view does, with prompts side by side.",
        ),
    ] = None
    inline: Annotated[
        bool,
        _output(
            "--inline",
            help="Show each image above its answer, in terminals that can (kitty, iTerm, sixel).",
        ),
    ] = False
    sidecar: Annotated[
        str | None,
        _output(
            "--sidecar",
            metavar=".ENDING",
            help="Write each answer to a text file next to its image: photo.txt for photo.jpg.",
        ),
    ] = None
    prepend: Annotated[
        str | None,
        _output("--prepend", metavar="TEXT", help="Start each text of --sidecar with this."),
    ] = None
    append: Annotated[
        str | None,
        _output("--append", metavar="TEXT", help="End each text of --sidecar with this."),
    ] = None
    existing: Annotated[
        ExistingTexts | None,
        _output(
            "--existing",
            default="keep",
            help="Keep or overwrite an existing text, or add the new one before or after it.",
        ),
    ] = None
    overwrite_edited: Annotated[
        bool,
        _output(
            "--overwrite-edited",
            help="Overwrite also texts that were edited, or that pgcli did not write.",
        ),
    ] = False
    no_timing: Annotated[
        bool,
        _output(
            "--no-timing",
            help="Leave times and batch sizes null, so that equal runs write equal rows.",
        ),
    ] = False
    rows_per_file: Annotated[
        int | None,
        _output(
            "--rows-per-file",
            metavar="N",
            parser=values.number(1, MAX_CHUNK_ROWS - 1),
            default="10,000, or a shard's fair part",
            help="Rows in each file of a folder of Parquet files.",
        ),
    ] = None
    overwrite: Annotated[
        bool, _output("--overwrite", help="Replace an existing output, and texts.")
    ] = False
