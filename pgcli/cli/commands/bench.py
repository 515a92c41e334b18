"""bench: the speed of this code, of transformers, and the limit of the machine."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Annotated

from pgcli import __version__
from pgcli.cli.commands.info import ModelArgument
from pgcli.cli.options import declared, number_option, option
from pgcli.cli.shared_options import Device, Dtype, Json, Quantize, Revision, images_option
from pgcli.cli.typer_app import command
from pgcli.cli.ui import stdout
from pgcli.cli.ui.console import Screen
from pgcli.run.request.options import MODELS, ModelOptions

_option = partial(option, own=True)


@command(
    "bench",
    "Both run in turns on the same checkpoint, prompts and pixels. Shows images per second from "
    "files to rows and of the model alone, the time of each stage, its share of the limit of this "
    "machine, and how many tokens are the same.\n\n"
    "MODEL is a folder, a name on the Hub, or demo, the built-in model, which is the default.",
    epilog="$ pgcli bench demo --batch-size 8 --seconds 1\n"
    "$ pgcli bench google/paligemma-3b-mix-224 --images photos --natural",
)
def bench(
    model: ModelArgument = MODELS[0],
    images: Annotated[
        str | None,
        images_option("Measure on the images of a folder.", default="drawn images"),
    ] = None,
    natural: Annotated[
        bool,
        _option(
            "Answering",
            "--natural",
            help="Let answers end by themselves, in place of 16 tokens each.",
        ),
    ] = False,
    seconds: Annotated[
        float,
        number_option(
            "Running",
            "--seconds",
            least=0.0,
            own=True,
            help="Time for all runs, which determines their number of images.",
        ),
    ] = 60.0,
    batch_size: Annotated[int | None, declared(ModelOptions, "batch_size")] = None,
    revision: Revision = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    quantize: Quantize = "none",
    json: Json = False,
) -> None:
    from pgcli.cli.find_model import find_model
    from pgcli.cli.ui.bench_report import show
    from pgcli.inputs import Inventory

    source = None if images is None else Inventory.scan([images])
    screen = Screen()
    checkpoint = find_model(model, revision, screen)
    with screen.status("loading PyTorch and transformers"):
        from pgcli.bench.benchmark import bench as measure
        from pgcli.proof.generated_images import generate_images

    report = measure(
        checkpoint,
        generate_images() if source is None else iter(source),
        batch_size=batch_size,
        natural=natural,
        quantize=quantize,
        seconds=seconds,
        device=device,
        dtype=dtype,
        waiting=screen.status,
    )
    if json:
        names = {
            "name": checkpoint.name,
            "path": str(checkpoint.folder),
            "revision": checkpoint.revision,
        }
        stdout.print_json({"pgcli": __version__, "checkpoint": names, **asdict(report)})
    else:
        show(report)
