"""pgcli ocr: the text in each image."""

from __future__ import annotations

from pgcli import tasks
from pgcli.cli.job.command import SOURCES, run_and_exit
from pgcli.cli.option_records import with_options
from pgcli.cli.options import Options, Sources
from pgcli.cli.typer_app import command


@command(
    "ocr",
    SOURCES,
    epilog="$ pgcli ocr scan.png\n"
    "$ find scans -name '*.png' -print0 | pgcli ocr - -0 -o texts.jsonl",
)
@with_options
def ocr(sources: Sources, options: Options) -> None:
    run_and_exit(sources, tasks.ocr(max_new_tokens=options.answering.max_new_tokens), options)
