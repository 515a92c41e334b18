"""pgcli score: how well texts describe each image."""

from __future__ import annotations

from typing import Annotated

from pgcli import tasks
from pgcli.cli.job.command import SOURCES, embed_and_exit
from pgcli.cli.option_records import with_options
from pgcli.cli.options import JobOptions, Sources, option
from pgcli.cli.options.towers import RawText
from pgcli.cli.typer_app import command


@command(
    "score",
    SOURCES,
    epilog='$ pgcli score photos --text "a red star" --text "a blue square"\n'
    "$ pgcli score captions.jsonl --text-column answer -o scores.jsonl",
)
@with_options
def score(
    sources: Sources,
    options: JobOptions,
    text: Annotated[
        list[str] | None,
        option("Texts", "--text", metavar="TEXT", once=False, help="A text; repeatable."),
    ] = None,
    text_column: Annotated[
        str | None,
        option(
            "Texts",
            "--text-column",
            metavar="NAME",
            help="Column of a manifest: the text of each row is scored with its image.",
        ),
    ] = None,
    raw_text: RawText = False,
) -> None:
    question = tasks.score(text or (), text_column=text_column, raw_text=raw_text)
    embed_and_exit(sources, question, options)
