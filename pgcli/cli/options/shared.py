"""How options are declared, and the options that commands of every kind share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import typer

from pgcli.checkpoints.find import DEMO
from pgcli.cli.options import values

MODELS = (DEMO, "google/paligemma-3b-mix-224", "google/paligemma-3b-mix-448")
DEVICES = ("auto", "cpu", "cuda", "cuda:0", "mps")


def models() -> list[str]:
    """Model names for completion: common ones, and those on this machine."""
    from pgcli.checkpoints.hub import cached_models

    return list(dict.fromkeys([*MODELS, *cached_models.cached_models()]))


@dataclass
class DebugState:
    """Whether `--debug` is given; known even if the rest of the command line is invalid."""

    debug: bool = False


def store_debug(context: typer.Context, debug: bool) -> bool:
    """Store `--debug` where the program finds it, also if a later option is invalid."""
    if isinstance(context.obj, DebugState):
        context.obj.debug = debug
    return debug


def option(panel: str, *names: str, help: str, once: bool = True, **more: Any) -> Any:
    """An option. One with a single value and a long name can also be set by `PGCLI_<NAME>` and by
    the configuration file.
    """
    long = [name.removeprefix("--") for name in names if name.startswith("--")]
    if long and once:
        more["envvar"] = "PGCLI_" + long[0].replace("-", "_").upper()
    if choices := more.pop("choices", ()):
        more["autocompletion"] = choices if callable(choices) else lambda: list(choices)
    if default := more.pop("default", ""):  # in words, where the value is not readable
        more["show_default"] = False
        help += rf" [dim]\[default: {default}][/]"
    return typer.Option(*names, help=help, rich_help_panel=panel, show_envvar=False, **more)


_input = partial(option, "Input")
_model = partial(option, "Model")
_running = partial(option, "Running")

# hidden, as its panel would show Python's type; the text of the help explains it
Sources = Annotated[list[str], typer.Argument(metavar="SOURCE", hidden=True)]

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
        metavar="NAME",
        parser=values.device,
        choices=DEVICES,
        help="auto, cpu, cuda, cuda:N or mps.",
    ),
]
Dtype = Annotated[
    str,
    _model(
        "--dtype",
        metavar="NAME",
        parser=values.dtype,
        choices=values.DTYPES,
        help="auto, bfloat16 or float32; auto is bfloat16 where that is fast.",
    ),
]
Quantize = Annotated[
    Literal["none", "int8"],
    _model(
        "--quantize",
        metavar="NAME",
        help="none or int8 (CPU only): an 8-bit decoder, faster and less exact.",
    ),
]
Quiet = Annotated[bool, _running("--quiet", "-q", help="Print errors only.")]
Debug = Annotated[
    bool,
    _running("--debug", is_eager=True, callback=store_debug, help="Show tracebacks of errors."),
]
