"""The commands that look at models and at this machine: info, verify and doctor."""

from __future__ import annotations

from typing import Annotated

import typer

from pgcli.cli.commands import Command, Program, app
from pgcli.cli.options import MODELS, Debug, Device, Dtype, Revision, option


@app.command(
    cls=Command,
    help="Show a model's sizes, the memory it needs and its files, without loading it.\n\n"
    "MODEL is a folder, a name on the Hub, or demo, the built-in one, which is the default.",
    epilog="$ pgcli info demo",
)
def info(
    model: Annotated[
        str,
        typer.Argument(
            metavar="[MODEL]",
            envvar="PGCLI_MODEL",
            hidden=True,
            autocompletion=lambda: list(MODELS),
        ),
    ] = MODELS[0],
    json: Annotated[bool, option("Output", "--json", help="Print one JSON object.")] = False,
    revision: Revision = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    debug: Debug = False,
) -> None:
    from pgcli.cli import models

    models.info(model, revision=revision, device=device, dtype=dtype, as_json=json)


@app.command(
    cls=Command,
    help="Prove on a checkpoint that answers are transformers'.\n\n"
    "Runs both on the same inputs and reports how far vision features, prefill logits and "
    "generated tokens lie apart.\n\n"
    "MODEL is a folder, a name on the Hub, or demo, the built-in one. --dtype auto compares in "
    "float32, and in bfloat16 too. Ends with 5 where they differ by more than rounding.",
    epilog="$ pgcli verify demo",
)
def verify(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", hidden=True, autocompletion=lambda: list(MODELS)),
    ],
    images: Annotated[
        str | None,
        option(
            "Input",
            "--images",
            metavar="DIR",
            default="drawn ones",
            help="Compare on the first 8 pictures of a folder.",
        ),
    ] = None,
    json: Annotated[bool, option("Output", "--json", help="Print one JSON object.")] = False,
    revision: Revision = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    debug: Debug = False,
) -> None:
    from pgcli.cli.verify import verify as compare

    compare(model, images=images, revision=revision, device=device, dtype=dtype, as_json=json)


@app.command(
    cls=Command,
    help="Look for what is wrong on this machine, and say the command that mends it.\n\n"
    "Looks at packages, PyTorch and its wheel, driver, memory, disk, the Hub's cache and login. "
    "Changes nothing. Ends with 17 where no model can run here, else with 0, whatever there is to "
    "mend.",
    epilog="$ pgcli doctor",
)
def doctor(
    context: typer.Context,
    online: Annotated[
        bool, option("Running", "--online", help="Ask the Hub too: is it there, is the token good?")
    ] = False,
    json: Annotated[bool, option("Output", "--json", help="Print one JSON object.")] = False,
    debug: Debug = False,
) -> None:
    from pgcli.cli.doctor import examine

    assert context.parent is not None
    assert isinstance(context.parent.command, Program)
    examine(context.parent.command.commands, online=online, as_json=json)
