"""pgcli caption: one caption for each image."""

from __future__ import annotations

from pgcli.cli.answering import SOURCES, answer
from pgcli.cli.options import Given, with_options
from pgcli.cli.shared_options import Sources
from pgcli.cli.typer_app import command
from pgcli.run.request.make import records_of


@command(
    "caption",
    SOURCES,
    epilog="$ pgcli caption photo.jpg\n"
    "$ pgcli caption photos -o captions.jsonl\n"
    "$ pgcli caption photos --model google/paligemma-3b-mix-224 -o rows.parquet",
)
@with_options(*records_of("caption"))
def caption(sources: Sources, given: Given) -> None:
    answer("caption", sources, given)
