"""pgcli caption: one caption for each image."""

from __future__ import annotations

from typing import Annotated

from pgcli import tasks
from pgcli.cli.job.command import SOURCES, run_and_exit
from pgcli.cli.option_records import with_options
from pgcli.cli.options import Options, Sources, option
from pgcli.cli.typer_app import command


@command(
    "caption",
    SOURCES,
    epilog="$ pgcli caption photo.jpg\n"
    "$ pgcli caption photos -o captions.jsonl\n"
    "$ pgcli caption photos --model google/paligemma-3b-mix-224 -o rows.parquet",
)
@with_options
def caption(
    sources: Sources,
    options: Options,
    lang: Annotated[
        str, option("Answering", "--lang", metavar="TAG", help="Language of the captions.")
    ] = "en",
) -> None:
    max_new_tokens = options.answering.max_new_tokens
    run_and_exit(sources, tasks.caption(lang, max_new_tokens=max_new_tokens), options)
