"""Which pictures are asked about: the options of the panel Input."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

from pgcli.cli.options import values
from pgcli.cli.options.shared import AllowPrivateHosts, AllowUrls, option
from pgcli.sources.read_options import ReadOptions

if TYPE_CHECKING:
    from pgcli.remote import UrlReader

_input = partial(option, "Input")


@dataclass(frozen=True, slots=True)
class InputOptions:
    """Which pictures, and how a manifest names what it holds."""

    image_column: Annotated[
        str, _input("--image-column", metavar="NAME", help="Column of a manifest: the pictures.")
    ] = ReadOptions.image_column
    id_column: Annotated[
        str, _input("--id-column", metavar="NAME", help="Column of a manifest: their ids.")
    ] = ReadOptions.id_column
    prompt_column: Annotated[
        str, _input("--prompt-column", metavar="NAME", help="Column of a manifest: the prompts.")
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
    limit: Annotated[
        int | None,
        _input("--limit", metavar="N", parser=values.number(1), help="Stop after N rows."),
    ] = None
    sample: Annotated[
        int | None,
        _input(
            "--sample",
            metavar="N",
            parser=values.number(1),
            help="Only N pictures, spread over all of them.",
        ),
    ] = None
    shard: Annotated[
        str | None,
        _input(
            "--shard",
            metavar="I/N|auto",
            help="Only the I-th of N parts of the rows, from 0, into a folder: -o DIR/.",
        ),
    ] = None
    nul: Annotated[
        bool, _input("-0", help="Names on standard input end in NUL, as from find -print0.")
    ] = False
    workers: Annotated[
        int | None,
        _input(
            "--workers",
            metavar="N",
            parser=values.number(0, 256),
            default="up to 4",
            help="Processes that decode pictures; 0: none but this one.",
        ),
    ] = None
    max_pixels: Annotated[
        int | None,
        _input(
            "--max-pixels",
            metavar="N",
            parser=values.number(1),
            default="89,478,485",
            help="Larger pictures are error rows.",
        ),
    ] = None
    fast_decode: Annotated[
        bool,
        _input(
            "--fast-decode",
            help="Decode large JPEGs small: several times as fast, of slightly other pixels.",
        ),
    ] = False
    allow_outside_root: Annotated[
        bool,
        _input(
            "--allow-outside-root",
            help="Follow links and paths that leave the folder or the manifest's folder.",
        ),
    ] = False
    allow_urls: AllowUrls = False
    allow_private_hosts: AllowPrivateHosts = False

    @property
    def url_reader(self) -> UrlReader | None:
        """The way to addresses, if there is to be one."""
        from pgcli.remote import make_url_reader

        return make_url_reader(
            allow_urls=self.allow_urls, allow_private_hosts=self.allow_private_hosts
        )
