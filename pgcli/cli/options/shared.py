"""How options are declared, and the options that commands of every kind share."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pgcli.checkpoints.find import DEMO
from pgcli.cli.option import option
from pgcli.cli.options import values

if TYPE_CHECKING:
    from pgcli.pipeline.error_budget import ErrorBudget

MODELS = (DEMO, "google/paligemma-3b-mix-224", "google/paligemma-3b-mix-448")
DEVICES = ("auto", "cpu", "cuda", "cuda:0", "mps")


def models() -> list[str]:
    """Model names for completion: common ones, and those on this machine."""
    from pgcli.checkpoints.hub import cached_models

    return list(dict.fromkeys([*MODELS, *cached_models.cached_models()]))


def number_option(
    panel: str, *names: str, least: float, most: float = 1e18, above: bool = False, **more: Any
) -> Any:
    """An option whose value is a number from `least` (or above it) to `most`, a whole one if
    `least` is.
    """
    metavar = more.pop("metavar", "N" if isinstance(least, int) else "X")
    parser = values.number(least, most, above=above)
    return option(panel, *names, metavar=metavar, parser=parser, **more)


def images_option(help: str, **more: Any) -> Any:
    """The option that names a folder of images, for a command that no sources are given to."""
    return option("Input", "--images", metavar="DIR", help=help, own=True, **more)


_input = partial(option, "Input")
_model = partial(option, "Model")
_running = partial(option, "Running")

# hidden, as its panel would show Python's type; the text of the help explains it
Sources = Annotated[list[str], typer.Argument(metavar="SOURCE", hidden=True)]

OnError = Annotated[
    Literal["record", "stop"],
    option(
        "Running",
        "--on-error",
        help="record: an unreadable image is an error row; stop: end at the first one.",
    ),
]
MaxErrors = Annotated[
    values.MaxErrors | None,
    option(
        "Running",
        "--max-errors",
        metavar="N|P%",
        parser=values.max_errors,
        default="50 in a row",
        help="Stop when more rows than this have errors.",
    ),
]


def error_budget(
    max_errors: values.MaxErrors | None, on_error: Literal["record", "stop"]
) -> ErrorBudget:
    """How many rows with errors end a run."""
    from pgcli.pipeline.error_budget import ErrorBudget  # not at the top: --help has to be fast

    most, share = max_errors or (None, None)
    return ErrorBudget(most, share, stop_on_error=on_error == "stop")


ImageColumn = Annotated[
    str, _input("--image-column", metavar="NAME", help="Column of a manifest with the images.")
]
IdColumn = Annotated[
    str, _input("--id-column", metavar="NAME", help="Column of a manifest with their ids.")
]
Include = Annotated[
    list[str] | None,
    _input(
        "--include",
        metavar="GLOB",
        once=False,
        help="Only images whose relative path or id matches, * any text with slashes; repeatable.",
    ),
]
Exclude = Annotated[
    list[str] | None,
    _input(
        "--exclude",
        metavar="GLOB",
        once=False,
        help="Leave out images whose relative path or id matches; repeatable.",
    ),
]
Workers = Annotated[
    int | None,
    number_option(
        "Input",
        "--workers",
        least=0,
        most=256,
        default="up to 4; for a GPU all cores but 2",
        help="Processes that decode images; 0: decode in this process.",
    ),
]
FastDecode = Annotated[
    bool,
    _input(
        "--fast-decode",
        help="Decode large JPEGs at reduced size: several times faster, slightly other pixels.",
    ),
]
AllowOutsideRoot = Annotated[
    bool,
    _input(
        "--allow-outside-root",
        help="Follow links and paths that lead out of the folder of the images or manifest.",
    ),
]
AllowUrls = Annotated[
    bool,
    _input(
        "--allow-urls",
        help="Read s3://, gs://, az://, hf:// and http(s):// addresses, also those in manifests.",
    ),
]
AllowPrivateHosts = Annotated[
    bool,
    _input(
        "--allow-private-hosts",
        help="Allow http(s):// addresses on this machine and its private network.",
    ),
]
Revision = Annotated[
    str | None, _model("--revision", metavar="NAME", help="Branch, tag or commit on the Hub.")
]
Device = Annotated[
    str,
    _model(
        "--device",
        metavar="[auto|cpu|cuda|cuda:N|mps]",
        parser=values.device,
        choices=DEVICES,
        help="auto is a GPU where there is one.",
    ),
]
Dtype = Annotated[
    str,
    _model(
        "--dtype",
        metavar=f"[{'|'.join(values.DTYPES)}]",
        parser=values.dtype,
        choices=values.DTYPES,
        help="auto is bfloat16 where that is fast.",
    ),
]
Quantize = Annotated[
    Literal["none", "int8", "fp8"],
    _model("--quantize", help="int8, or fp8 (new GPUs): an 8-bit decoder, less exact."),
]
ResultFile = Annotated[
    str,
    option("Output", "--output", "-o", metavar="FILE", own=True, help="A .jsonl or .parquet."),
]
ReplaceFile = Annotated[
    bool, option("Output", "--overwrite", own=True, help="Replace an existing file.")
]
Json = Annotated[bool, option("Output", "--json", help="Print one JSON object.")]
Quiet = Annotated[bool, _running("--quiet", "-q", help="Print errors only.")]
