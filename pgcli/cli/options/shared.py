"""How options are declared, and those that commands of every kind share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pgcli.checkpoints.find import DEMO
from pgcli.cli.options import values

if TYPE_CHECKING:
    pass

MODELS = (DEMO, "google/paligemma-3b-mix-224", "google/paligemma-3b-mix-448")
DEVICES = ("auto", "cpu", "cuda", "cuda:0", "mps")


def models() -> list[str]:
    """Names that may be meant: usual ones, and those on this machine."""
    from pgcli.checkpoints.hub import cached_models

    return list(dict.fromkeys([*MODELS, *cached_models.cached_models()]))


@dataclass
class DebugState:
    """What must be known of a command line even if it cannot be read to its end."""

    debug: bool = False


def store_debug(context: typer.Context, debug: bool) -> bool:
    """Keep `--debug` where the program finds it, also when a later option is wrong."""
    if isinstance(context.obj, DebugState):
        context.obj.debug = debug
    return debug


def option(panel: str, *names: str, help: str, once: bool = True, **more: Any) -> Any:
    """An option. One of a single value is also set by `PGCLI_<NAME>` and by the settings file,
    which goes by its long name: `-0` has none.
    """
    long = [name.removeprefix("--") for name in names if name.startswith("--")]
    if long and once:
        more["envvar"] = "PGCLI_" + long[0].replace("-", "_").upper()
    if choices := more.pop("choices", ()):
        more["autocompletion"] = choices if callable(choices) else lambda: list(choices)
    if default := more.pop("default", ""):  # in words, where the value says nothing
        more["show_default"] = False
        help += rf" [dim]\[default: {default}][/]"
    return typer.Option(*names, help=help, rich_help_panel=panel, show_envvar=False, **more)


_input = partial(option, "Input")
_model = partial(option, "Model")
_running = partial(option, "Running")

# its panel would show Python's type of it: the commands' help explains it in words
Sources = Annotated[list[str], typer.Argument(metavar="SOURCE", hidden=True)]

AllowUrls = Annotated[
    bool,
    _input("--allow-urls", help="Read s3://, gs://, hf:// and http(s):// addresses, in rows too."),
]
AllowPrivateHosts = Annotated[
    bool,
    _input(
        "--allow-private-hosts",
        help="Let http(s):// addresses lead to this machine and its own network.",
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
        help="none or int8, on a processor: the decoder in eight bits, sooner and less exact.",
    ),
]
Quiet = Annotated[bool, _running("--quiet", "-q", help="Say nothing but errors.")]
Debug = Annotated[
    bool,
    _running("--debug", is_eager=True, callback=store_debug, help="Show tracebacks of errors."),
]
