"""The options of the command `search`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from pgcli.checkpoints.find import DEMO_TOWERS
from pgcli.cli.options import LoadOptions, images_option
from pgcli.declare import opt, same
from pgcli.run.request.options import InputOptions, RunningOptions

_search = partial(opt, panel="What to search", own=True)
_output = partial(opt, panel="Where to", own=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions(LoadOptions):
    """What is searched in the files `vectors`, and where the hits are written."""

    vectors: Sequence[str] = ()
    text: tuple[str, ...] = _search("A text; repeatable.", metavar="TEXT", repeat=True)
    image: tuple[str, ...] = _search("An image; repeatable.", metavar="FILE", repeat=True)
    duplicates: bool = _search("Groups of near-duplicates.", default=False)
    k: int | None = _search("Hits of each query.", short=("-k",), min=1, default_text="10")
    min_similarity: float | None = _search(
        "Leave out what is less similar.",
        min=-1.0,
        max=1.0,
        default_text="none; --duplicates: 0.94",
    )
    index: bool = _search(
        "Search in a faiss index next to the vectors, built where it is missing or old: fast, and "
        "nearly exact.",
        default=False,
    )
    raw_text: bool = _search("Leave upper case and punctuation as they are.", default=False)
    model: str | None = opt(
        "The model that embeds the queries.",
        panel="Which model",
        own=True,
        metavar="NAME",
        default_text=f"the model that the vectors name, else {DEMO_TOWERS}",
    )
    output: str = _output(
        "A .jsonl or .parquet file; - is standard output.",
        default="-",
        metavar="FILE",
        short=("-o",),
    )
    format: Literal["auto", "jsonl", "text"] = _output(
        "auto follows the file's ending, and is text on a terminal.", default="auto"
    )
    view: str | None = _output("Write a page of the images found.", metavar="PAGE")
    images: str | None = images_option(
        "With --view, search the images that rows name in this folder only."
    )
    overwrite: bool = _output("Replace existing files.", default=False)
    allow_urls: bool = same(InputOptions, "allow_urls")
    allow_private_hosts: bool = same(InputOptions, "allow_private_hosts")
    quiet: bool = same(RunningOptions, "quiet")
