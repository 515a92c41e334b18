"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pgcli.cli.options import declared, option
from pgcli.run.request.options import InputOptions, ModelOptions, RunningOptions
from pgcli.run.request.questions import BoxOptions


def images_option(help: str, **more: Any) -> Any:
    """The option that names a folder of images, for a command that no sources are given to."""
    return option("Input", "--images", metavar="DIR", help=help, own=True, **more)


# hidden, as its panel would show Python's type; the text of the help explains it
Sources = Annotated[list[str], typer.Argument(metavar="SOURCE", hidden=True)]
AllowUrls = Annotated[bool, declared(InputOptions, "allow_urls")]
AllowPrivateHosts = Annotated[bool, declared(InputOptions, "allow_private_hosts")]
Revision = Annotated[str | None, declared(ModelOptions, "revision")]
Device = Annotated[str, declared(ModelOptions, "device")]
Dtype = Annotated[str, declared(ModelOptions, "dtype")]
Quantize = Annotated[str, declared(ModelOptions, "quantize")]
MinScore = Annotated[float | None, declared(BoxOptions, "min_score")]
MinConfidence = Annotated[float | None, declared(BoxOptions, "min_confidence")]
Nms = Annotated[float | None, declared(BoxOptions, "nms")]
Quiet = Annotated[bool, declared(RunningOptions, "quiet")]
ResultFile = Annotated[
    str,
    option("Output", "--output", "-o", metavar="FILE", own=True, help="A .jsonl or .parquet."),
]
ReplaceFile = Annotated[
    bool, option("Output", "--overwrite", own=True, help="Replace an existing file.")
]
Json = Annotated[bool, option("Output", "--json", help="Print one JSON object.")]
