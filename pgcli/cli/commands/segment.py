"""pgcli segment: boxes around objects in each image, and their masks."""

from __future__ import annotations

from pgcli.cli.answering import SOURCES, answer
from pgcli.cli.options import Given, with_options
from pgcli.cli.shared_options import Sources
from pgcli.cli.typer_app import command
from pgcli.run.request.make import records_of


@command(
    "segment",
    SOURCES,
    epilog="$ pgcli segment photo.jpg --object cat --draw drawn\n"
    "$ pgcli segment photos --object cat --mask-decoder vae-oid.npz -o masks.jsonl",
)
@with_options(*records_of("segment"))
def segment(sources: Sources, given: Given) -> None:
    answer("segment", sources, given)
