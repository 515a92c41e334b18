"""pgcli detect: boxes around objects in each image."""

from __future__ import annotations

from pgcli.cli.answering import SOURCES, answer
from pgcli.cli.options import Given, with_options
from pgcli.cli.shared_options import Sources
from pgcli.cli.typer_app import command
from pgcli.run.request.make import records_of


@command(
    "detect",
    SOURCES,
    epilog="$ pgcli detect photo.jpg --object cat --draw drawn\n"
    '$ pgcli detect photos --object cat --object "red car" -o boxes.jsonl',
)
@with_options(*records_of("detect"))
def detect(sources: Sources, given: Given) -> None:
    answer("detect", sources, given)
