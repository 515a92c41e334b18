"""The options of `train` for its rows: their images, and the columns of a manifest."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

from pgcli.cli.option import option
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
_input_number = partial(number_option, "Input")


@dataclass(frozen=True, slots=True)
class TrainingInputOptions:
    """The images to read, and the columns of a manifest."""

    image_column: ImageColumn = ReadOptions.image_column
    id_column: IdColumn = ReadOptions.id_column
    prompt: Annotated[
        str | None,
        _input(
            "--prompt",
            metavar="TEXT",
            own=True,
            help="The prompt of all rows, where they have none, such as: caption en. A column in "
            "braces is replaced by its value.",
        ),
    ] = None
    prompt_column: Annotated[
        str | None,
        _input(
            "--prompt-column",
            metavar="NAME",
            default="prefix or prompt",
            own=True,
            help="Column of a manifest with the prompts.",
        ),
    ] = None
    answer_column: Annotated[
        str | None,
        _input(
            "--answer-column",
            metavar="NAME",
            default="suffix, answer or txt",
            own=True,
            help="Column of a manifest with the answers.",
        ),
    ] = None
    text_column: Annotated[
        str,
        _input("--text-column", metavar="NAME", help="Column of a manifest with the texts."),
    ] = "text"
    label_column: Annotated[
        str,
        _input("--label-column", metavar="NAME", help="Column of a manifest with the labels."),
    ] = "label"
    include: Include = None
    exclude: Exclude = None
    workers: Workers = None
    max_pixels: Annotated[
        int | None,
        _input_number(
            "--max-pixels",
            least=1,
            default="89,478,485",
            own=True,
            help="Larger images are left out.",
        ),
    ] = None
    fast_decode: FastDecode = False
    allow_outside_root: AllowOutsideRoot = False
    allow_urls: AllowUrls = False
    allow_private_hosts: AllowPrivateHosts = False

    @property
    def url_reader(self) -> UrlReader | None:
        """The reader of URLs, if these are allowed."""
        from pgcli.remote import make_url_reader

        return make_url_reader(
            allow_urls=self.allow_urls, allow_private_hosts=self.allow_private_hosts
        )

    @property
    def read_options(self) -> ReadOptions:
        """How the sources are read."""
        return ReadOptions(
            image_column=self.image_column,
            id_column=self.id_column,
            names=NameFilter(tuple(self.include or ()), tuple(self.exclude or ())),
            allow_outside_root=self.allow_outside_root,
            url_reader=self.url_reader,
        )
