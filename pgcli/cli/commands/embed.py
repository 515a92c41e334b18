"""pgcli embed: the embedding of each image or text."""

from __future__ import annotations

from typing import Annotated

import typer

from pgcli.cli.answering import SOURCES, answer
from pgcli.cli.options import Given, with_options
from pgcli.cli.typer_app import command
from pgcli.run.request.make import records_of


@command(
    "embed",
    SOURCES,
    epilog="$ pgcli embed photos -o vectors.parquet\n"
    '$ pgcli embed --text "a red star" --text "a blue square" -o texts.parquet\n'
    "$ pgcli embed photos --model google/siglip-base-patch16-224 -o vectors.parquet",
)
@with_options(*records_of("embed"))
def embed(
    given: Given,
    sources: Annotated[list[str] | None, typer.Argument(metavar="SOURCE", hidden=True)] = None,
) -> None:
    answer("embed", sources or (), given)
