"""pgcli score: how well texts describe each image."""

from __future__ import annotations

from pgcli.cli.answering import SOURCES, answer
from pgcli.cli.options import Given, with_options
from pgcli.cli.shared_options import Sources
from pgcli.cli.typer_app import command
from pgcli.run.request.make import records_of


@command(
    "score",
    SOURCES,
    epilog='$ pgcli score photos --text "a red star" --text "a blue square"\n'
    "$ pgcli score captions.jsonl --text-column answer -o scores.jsonl",
)
@with_options(*records_of("score"))
def score(sources: Sources, given: Given) -> None:
    answer("score", sources, given)
