"""search: the images most similar to a text or an image, and near-duplicates, among vectors."""

from __future__ import annotations

from typing import Annotated

import typer

from pgcli.cli.find_model import revision_of
from pgcli.cli.options import Given, command
from pgcli.cli.search.search_options import SearchOptions
from pgcli.cli.ui.console import Screen


@command(
    "search",
    "VECTORS are files and folders of embeddings that `pgcli embed` wrote. The similarity is the "
    "cosine; all vectors are compared unless there is an --index.",
    SearchOptions,
    examples='$ pgcli search photos.parquet --text "a red star"\n'
    "$ pgcli search photos.parquet --image photo.jpg --view page.html\n"
    "$ pgcli search photos.parquet --duplicates -o groups.jsonl",
)
def search(
    vectors: Annotated[list[str], typer.Argument(metavar="VECTORS", hidden=True)], given: Given
) -> None:
    from pgcli.cli.search.run import run_search

    revision = revision_of(given.values.get("model"), given.values, given.typed)
    options = given.build(SearchOptions, vectors=vectors, revision=revision)
    run_search(options, Screen(quiet=given.quiet))
