"""What the declarations of the answering commands share: the request, and its run."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from pgcli.cli.options import Given
from pgcli.run.request.make import make_request

SOURCES = """SOURCE is any number of folders (searched recursively), image files, quoted globs, \
manifests (.parquet, .csv, .tsv, .jsonl), WebDataset archives (.tar), and - for standard input: a \
path or a JSON object on each line."""


def answer(command: str, sources: Sequence[str], given: Given) -> None:
    """Answer what the command asks about every item, then exit with the code of the run."""
    request = make_request(
        command, sources, given.values, typed=given.typed, arguments=given.arguments
    )
    from pgcli.cli.run_command import run_request  # imports Pillow, which --help does not need

    raise typer.Exit(run_request(request))
