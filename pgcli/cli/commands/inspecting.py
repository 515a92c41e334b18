"""The commands that look at models and at this machine: info, verify, bench and doctor."""

from __future__ import annotations

from typing import Annotated

import typer

from pgcli.cli.options import (
    MODELS,
    Debug,
    Device,
    Dtype,
    Quantize,
    Revision,
    models,
    option,
    values,
)
from pgcli.cli.program import PgcliCommand, PgcliGroup, app

Named = Annotated[
    str,
    typer.Argument(metavar="MODEL", envvar="PGCLI_MODEL", hidden=True, autocompletion=models),
]


@app.command(
    cls=PgcliCommand,
    rich_help_panel="Models and this machine",
    help="Show a model's sizes, the memory it needs and its files, without loading it.\n\n"
    "MODEL is a folder, a name on the Hub, or demo, the built-in one, which is the default.",
    epilog="$ pgcli info demo\n$ pgcli info google/paligemma-3b-mix-224 --device cuda",
)
def info(
    model: Named = MODELS[0],
    json: Annotated[bool, option("Output", "--json", help="Print one JSON object.")] = False,
    revision: Revision = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    debug: Debug = False,
) -> None:
    from pgcli.cli.commands import info as models

    models.info(model, revision=revision, device=device, dtype=dtype, as_json=json)


@app.command(
    cls=PgcliCommand,
    rich_help_panel="Models and this machine",
    help="Prove on a checkpoint that answers are transformers'.\n\n"
    "Runs both on the same inputs and reports how far vision features, prefill logits and "
    "generated tokens lie apart.\n\n"
    "MODEL is a folder, a name on the Hub, or demo, the built-in one. --dtype auto compares in "
    "float32, and in bfloat16 too. Ends with 5 where they differ by more than rounding.",
    epilog="$ pgcli verify demo\n$ pgcli verify google/paligemma-3b-mix-224 --images photos",
)
def verify(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", hidden=True, autocompletion=models),
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
    from pgcli.cli.commands.verify import verify as compare

    compare(model, images=images, revision=revision, device=device, dtype=dtype, as_json=json)


@app.command(
    cls=PgcliCommand,
    rich_help_panel="Models and this machine",
    help="Measure images per second side by side with transformers.\n\n"
    "Both run in turns on the same checkpoint, prompts and pixels. Shows the ratio of medians, the "
    "time of each stage, its share of what this machine can do at best, and how far the tokens "
    "agree.\n\n"
    "MODEL is a folder, a name on the Hub, or demo, the built-in one, which is the default.",
    epilog="$ pgcli bench demo --batch-size 8 --scope device --rounds 1 --seconds 1\n"
    "$ pgcli bench google/paligemma-3b-mix-224 --images photos --plot speed.svg",
)
def bench(
    model: Named = MODELS[0],
    images: Annotated[
        str | None,
        option(
            "Input",
            "--images",
            metavar="DIR",
            default="drawn ones",
            help="Measure on a folder's pictures.",
        ),
    ] = None,
    limit: Annotated[
        int | None,
        option(
            "Input",
            "--limit",
            metavar="N",
            parser=values.number(1),
            default="as --seconds allow",
            help="Pictures in each run.",
        ),
    ] = None,
    new_tokens: Annotated[
        values.Span | None,
        option(
            "Answering",
            "--new-tokens",
            metavar="N",
            parser=values.span,
            default="16",
            help="Tokens of each answer, whatever the model says; 4-64 draws them in between.",
        ),
    ] = None,
    natural: Annotated[
        bool,
        option(
            "Answering",
            "--natural",
            help="Let answers end by themselves; with --new-tokens, measure both.",
        ),
    ] = False,
    scope: Annotated[
        values.Scopes,
        option(
            "Running",
            "--scope",
            metavar="A,B",
            parser=values.scopes,
            choices=values.ALL_SCOPES,
            default="device,arrays,files",
            help="device: the model alone; arrays: pixels in memory to tokens; files: to rows.",
        ),
    ] = values.ALL_SCOPES,
    rounds: Annotated[
        int,
        option(
            "Running",
            "--rounds",
            metavar="N",
            parser=values.number(1),
            help="Runs of each program at each setting, in turns.",
        ),
    ] = 5,
    seconds: Annotated[
        float,
        option(
            "Running",
            "--seconds",
            metavar="N",
            parser=values.number(0.0),
            help="Time for all runs; they have as many pictures as it allows.",
        ),
    ] = 60.0,
    batch_size: Annotated[
        values.BatchSizes,
        option(
            "Model",
            "--batch-size",
            metavar="A,B",
            parser=values.batch_sizes,
            default="1, 8 and what fits",
            help="Rows in one pass, one after the other.",
        ),
    ] = values.AUTO_SIZES,
    output: Annotated[
        str | None,
        option(
            "Output", "--output", "-o", metavar="FILE", once=False, help="Write all of it as JSON."
        ),
    ] = None,
    plot: Annotated[
        str | None,
        option(
            "Output",
            "--plot",
            metavar="FILE",
            once=False,
            help="Draw images per second against batch size, as an SVG.",
        ),
    ] = None,
    overwrite: Annotated[
        bool, option("Output", "--overwrite", help="Replace existing files.")
    ] = False,
    revision: Revision = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    quantize: Quantize = "none",
    debug: Debug = False,
) -> None:
    from pgcli.bench.plan import Lengths, Plan
    from pgcli.cli.commands.bench import bench as measure
    from pgcli.tasks import MAX_NEW_TOKENS

    lengths = [] if natural and new_tokens is None else [Lengths(*(new_tokens or (16, 16)))]
    if natural:
        lengths.append(Lengths(1, MAX_NEW_TOKENS["caption"], natural=True))
    measure(
        model,
        Plan(
            batch_sizes=batch_size,
            scopes=scope,
            lengths=tuple(lengths),
            rounds=rounds,
            seconds=seconds,
            pictures=limit,
            quantize=quantize,
        ),
        images=images,
        revision=revision,
        device=device,
        dtype=dtype,
        outputs=(output, plot),
        overwrite=overwrite,
    )


@app.command(
    cls=PgcliCommand,
    rich_help_panel="Models and this machine",
    help="Look for what is wrong on this machine, and say the command that mends it.\n\n"
    "Looks at packages, PyTorch and its wheel, driver, memory, disk, the Hub's cache and login. "
    "Changes nothing. Ends with 17 where no model can run here, else with 0, whatever there is to "
    "mend.",
    epilog="$ pgcli doctor\n$ pgcli doctor --online --json",
)
def doctor(
    context: typer.Context,
    online: Annotated[
        bool, option("Running", "--online", help="Ask the Hub too: is it there, is the token good?")
    ] = False,
    json: Annotated[bool, option("Output", "--json", help="Print one JSON object.")] = False,
    debug: Debug = False,
) -> None:
    from pgcli.cli.commands.doctor import examine

    assert context.parent is not None
    assert isinstance(context.parent.command, PgcliGroup)
    examine(context.parent.command.commands, online=online, as_json=json)
