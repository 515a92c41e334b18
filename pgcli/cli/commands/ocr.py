"""pgcli ocr: the text in each image."""

from __future__ import annotations

from pgcli.cli.answering import SOURCES, answer
from pgcli.cli.options import Given, with_options
from pgcli.cli.shared_options import Sources
from pgcli.cli.typer_app import command
from pgcli.run.request.make import records_of


@command(
    "ocr",
    SOURCES,
    epilog="$ pgcli ocr scan.png\n"
    "$ find scans -name '*.png' -print0 | pgcli ocr - -0 -o texts.jsonl",
)
@with_options(*records_of("ocr"))
def ocr(sources: Sources, given: Given) -> None:
    answer("ocr", sources, given)
