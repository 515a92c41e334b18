"""The options that commands share, declared once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any, Literal, get_type_hints

import typer

from pgcli.checkpoints.find import DEMO
from pgcli.cli import values
from pgcli.sources.reading import Reading

KNOWN_MODELS = (DEMO, "google/paligemma-3b-mix-224", "google/paligemma-3b-mix-448")


@dataclass
class Session:
    """What must be known of a command line even if it cannot be read to its end."""

    debug: bool = False


def remember(context: typer.Context, debug: bool) -> bool:
    """Keep `--debug` where the program finds it when a later option is wrong."""
    if isinstance(context.obj, Session):
        context.obj.debug = debug
    return debug


def option(panel: str, *names: str, help: str, **more: Any) -> Any:
    """An option; one of a single value can also be set by `PGCLI_<NAME>` and by the settings file.

    That needs a name to be set by: an option of one letter has none.
    """
    long = [name.removeprefix("--") for name in names if name.startswith("--")]
    if long and not more.pop("repeatable", False):
        more["envvar"] = "PGCLI_" + long[0].replace("-", "_").upper()
    return typer.Option(
        *names, help=help, rich_help_panel=panel, **{"show_envvar": False, **more}
    )


Sources = Annotated[
    list[str],
    typer.Argument(
        metavar="SOURCE",
        show_default=False,
        help="Folders, image files, quoted globs, manifests (Parquet, CSV, TSV, JSONL); "
        "- is standard input.",
    ),
]
Revision = Annotated[
    str | None,
    option(
        "Model", "--revision", metavar="NAME", help="Branch, tag or commit of a model of the Hub."
    ),
]
Device = Annotated[
    str,
    option(
        "Model",
        "--device",
        metavar="NAME",
        parser=values.device,
        autocompletion=lambda: ["auto", "cpu", "cuda", "cuda:0", "mps"],
        help="auto, cpu, cuda, cuda:N or mps.",
    ),
]
Dtype = Annotated[
    str,
    option(
        "Model",
        "--dtype",
        metavar="NAME",
        parser=values.dtype,
        autocompletion=lambda: list(values.DTYPES),
        help="auto, bfloat16 or float32.",
    ),
]
Debug = Annotated[
    bool,
    option(
        "Running", "--debug", is_eager=True, callback=remember, help="Tracebacks of all errors."
    ),
]


@dataclass(frozen=True, slots=True)
class Input:
    image_column: Annotated[
        str, option("Input", "--image-column", metavar="NAME", help="Manifest column of pictures.")
    ] = Reading.image_column
    id_column: Annotated[
        str, option("Input", "--id-column", metavar="NAME", help="Manifest column of ids.")
    ] = Reading.id_column
    prompt_column: Annotated[
        str, option("Input", "--prompt-column", metavar="NAME", help="Manifest column of prompts.")
    ] = Reading.prompt_column
    keep: Annotated[
        Any,
        option(
            "Input",
            "--keep",
            metavar="A,B",
            parser=values.columns,
            help="Manifest columns to copy to the output.",
        ),
    ] = None
