"""pgcli embed: the embedding of each image or text."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from pgcli import tasks
from pgcli.cli.job.command import SOURCES, embed_and_exit
from pgcli.cli.option_records import with_options
from pgcli.cli.options import JobOptions, option
from pgcli.cli.options.towers import RawText
from pgcli.cli.typer_app import command
from pgcli.errors import UsageError


@command(
    "embed",
    SOURCES,
    epilog="$ pgcli embed photos -o vectors.parquet\n"
    '$ pgcli embed --text "a red star" --text "a blue square" -o texts.parquet\n'
    "$ pgcli embed photos --model google/siglip-base-patch16-224 -o vectors.parquet",
)
@with_options
def embed(
    options: JobOptions,
    sources: Annotated[list[str] | None, typer.Argument(metavar="SOURCE", hidden=True)] = None,
    text: Annotated[
        list[str] | None,
        option(
            "Embeddings",
            "--text",
            metavar="TEXT",
            once=False,
            help="A text to embed in place of images; repeatable.",
        ),
    ] = None,
    texts_file: Annotated[
        str | None,
        option(
            "Embeddings",
            "--texts-file",
            metavar="FILE",
            help="A text file with a text on each line, embedded after those of --text.",
        ),
    ] = None,
    raw_text: RawText = False,
    dtype_out: Annotated[
        Literal["float32", "float16"],
        option("Output", "--dtype-out", help="The type of the values of embeddings."),
    ] = "float32",
) -> None:
    has_texts = bool(text) or texts_file is not None
    if bool(sources) == has_texts:
        what = "images and texts are both given" if sources else "no image and no text is given"
        raise UsageError(
            what, hint='name a folder of images; or --text "a red car", in another run'
        )
    question = tasks.embed(
        text or (), texts_file=texts_file, float16=dtype_out == "float16", raw_text=raw_text
    )
    embed_and_exit(sources or (), question, options)
