"""The options of the panel Input."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

from pgcli.cli.option import option
from pgcli.cli.options import values
from pgcli.cli.options.shared import (
    AllowOutsideRoot,
    AllowPrivateHosts,
    AllowUrls,
    Exclude,
    FastDecode,
    IdColumn,
    ImageColumn,
    Include,
    Workers,
    number_option,
)
from pgcli.sources.name_filter import NameFilter
from pgcli.sources.read_options import ReadOptions

if TYPE_CHECKING:
    from pgcli.remote import UrlReader

_input = partial(option, "Input")
_number = partial(number_option, "Input")


@dataclass(frozen=True, slots=True)
class InputOptions:
    """The images to read, and the columns of a manifest."""

    image_column: ImageColumn = ReadOptions.image_column
    id_column: IdColumn = ReadOptions.id_column
    prompt_column: Annotated[
        str,
        _input("--prompt-column", metavar="NAME", help="Column of a manifest with the prompts."),
    ] = ReadOptions.prompt_column
    keep: Annotated[
        values.Columns,
        _input(
            "--keep",
            metavar="A,B",
            parser=values.columns,
            show_default=False,
            help="Columns of a manifest to copy to the output.",
        ),
    ] = values.NO_COLUMNS
    limit: Annotated[int | None, _number("--limit", least=1, help="Stop after N rows.")] = None
    sample: Annotated[
        int | None,
        _number("--sample", least=1, help="Only N images, evenly spread over the input."),
    ] = None
    shard: Annotated[
        str | None,
        _input(
            "--shard",
            metavar="I/N|auto",
            help="Only part I of N of the rows, counted from 0, into a folder: -o DIR/.",
        ),
    ] = None
    include: Include = None
    exclude: Exclude = None
    null: Annotated[
        bool,
        _input(
            "--null",
            "-0",
            help="Names on standard input are separated by NUL, as from find -print0.",
        ),
    ] = False
    workers: Workers = None
    max_pixels: Annotated[
        int | None,
        _number(
            "--max-pixels",
            least=1,
            default="89,478,485",
            help="Larger images become error rows.",
        ),
    ] = None
    fast_decode: FastDecode = False
    allow_outside_root: AllowOutsideRoot = False
    allow_urls: AllowUrls = False
    allow_private_hosts: AllowPrivateHosts = False
    fetch_timeout: Annotated[
        int | None,
        _number(
            "--fetch-timeout",
            least=1,
            default="60",
            help="Seconds for an image at an address, all tries together.",
        ),
    ] = None
    fetch_threads: Annotated[
        int | None,
        _number(
            "--fetch-threads",
            least=1,
            most=1024,
            default="16",
            help="Images at addresses that are fetched at once.",
        ),
    ] = None

    @property
    def names(self) -> NameFilter:
        """The images to read, by their names."""
        return NameFilter(tuple(self.include or ()), tuple(self.exclude or ()))

    @property
    def url_reader(self) -> UrlReader | None:
        """The reader of URLs, if these are allowed."""
        from pgcli.remote import make_url_reader

        return make_url_reader(
            allow_urls=self.allow_urls,
            allow_private_hosts=self.allow_private_hosts,
            fetch_seconds=self.fetch_timeout,
            fetch_threads=self.fetch_threads,
        )
