"""search: the images most similar to a text or an image, and near-duplicates, among vectors."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

import typer

from pgcli.checkpoints.find import DEMO_TOWERS
from pgcli.cli.options import number_option, option
from pgcli.cli.shared_options import (
    AllowPrivateHosts,
    AllowUrls,
    Device,
    Dtype,
    Quiet,
    Revision,
    images_option,
)
from pgcli.cli.typer_app import command
from pgcli.cli.ui.console import Screen

_option = partial(option, own=True)
_number = partial(number_option, own=True)


@command(
    "search",
    "VECTORS are files and folders of embeddings that `pgcli embed` wrote. The similarity is the "
    "cosine; all vectors are compared unless there is an --index.",
    epilog='$ pgcli search photos.parquet --text "a red star"\n'
    "$ pgcli search photos.parquet --image photo.jpg --view page.html\n"
    "$ pgcli search photos.parquet --duplicates -o groups.jsonl",
)
def search(
    vectors: Annotated[list[str], typer.Argument(metavar="VECTORS", hidden=True)],
    text: Annotated[
        list[str] | None,
        _option("Search", "--text", metavar="TEXT", once=False, help="A text; repeatable."),
    ] = None,
    image: Annotated[
        list[str] | None,
        _option("Search", "--image", metavar="FILE", once=False, help="An image; repeatable."),
    ] = None,
    duplicates: Annotated[
        bool, _option("Search", "--duplicates", help="Groups of near-duplicates.")
    ] = False,
    k: Annotated[
        int | None, _number("Search", "-k", least=1, default="10", help="Hits of each query.")
    ] = None,
    min_similarity: Annotated[
        float | None,
        _number(
            "Search",
            "--min-similarity",
            least=-1.0,
            most=1.0,
            default="none; --duplicates: 0.94",
            help="Leave out what is less similar.",
        ),
    ] = None,
    index: Annotated[
        bool,
        _option(
            "Search",
            "--index",
            help="Search in a faiss index next to the vectors, built where it is missing or old: "
            "fast, and nearly exact.",
        ),
    ] = False,
    raw_text: Annotated[
        bool,
        _option("Search", "--raw-text", help="Leave upper case and punctuation as they are."),
    ] = False,
    model: Annotated[
        str | None,
        _option(
            "Model",
            "--model",
            metavar="NAME",
            default=f"the model that the vectors name, else {DEMO_TOWERS}",
            help="The model that embeds the queries.",
        ),
    ] = None,
    revision: Revision = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    output: Annotated[
        str,
        _option(
            "Output",
            "--output",
            "-o",
            metavar="FILE",
            help="A .jsonl or .parquet file; - is standard output.",
        ),
    ] = "-",
    format: Annotated[
        Literal["auto", "jsonl", "text"],
        _option(
            "Output", "--format", help="auto follows the file's ending, and is text on a terminal."
        ),
    ] = "auto",
    view: Annotated[
        str | None,
        _option("Output", "--view", metavar="PAGE", help="Write a page of the images found."),
    ] = None,
    images: Annotated[
        str | None,
        images_option("With --view, search the images that rows name in this folder only."),
    ] = None,
    overwrite: Annotated[
        bool, _option("Output", "--overwrite", help="Replace existing files.")
    ] = False,
    allow_urls: AllowUrls = False,
    allow_private_hosts: AllowPrivateHosts = False,
    quiet: Quiet = False,
) -> None:
    from pgcli.cli.search.run import run_search
    from pgcli.cli.search.search_options import SearchOptions

    options = SearchOptions(
        vectors=vectors,
        texts=text or (),
        images=image or (),
        duplicates=duplicates,
        k=k,
        min_similarity=min_similarity,
        index=index,
        raw_text=raw_text,
        model=model,
        revision=revision,
        device=device,
        dtype=dtype,
        output=output,
        format=format,
        view=view,
        images_folder=images,
        overwrite=overwrite,
        allow_urls=allow_urls,
        allow_private_hosts=allow_private_hosts,
    )
    run_search(options, Screen(quiet=quiet))
