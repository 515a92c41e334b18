"""The options of the panel Model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated

from pgcli.checkpoints.find import DEMO, DEMO_TOWERS
from pgcli.cli.option import option
from pgcli.cli.options import values
from pgcli.cli.options.shared import Device, Dtype, Quantize, Revision, models, number_option

_model = partial(option, "Model")


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """The model, and the device and dtype that it runs with."""

    model: Annotated[
        str | None,
        _model(
            "--model",
            metavar="NAME",
            choices=models,
            default=f"{DEMO}, or {DEMO_TOWERS} for embed, score and classify",
            help="A folder, a name on the Hub, or a built-in model.",
        ),
    ] = None
    revision: Revision = None
    adapter: Annotated[
        str | None,
        _model(
            "--adapter",
            metavar="NAME",
            help="A LoRA adapter to merge into the model: a folder or a name on the Hub.",
        ),
    ] = None
    device: Device = "auto"
    dtype: Dtype = "auto"
    quantize: Quantize = "none"
    batch_size: Annotated[
        int | None,
        _model(
            "--batch-size",
            metavar="N",
            parser=values.batch_size,
            default="auto",
            help="Rows in one batch, or auto: as many as fit into memory.",
        ),
    ] = None
    engines: Annotated[
        int | None,
        _model(
            "--engines",
            metavar="N",
            parser=values.engines,
            default="auto",
            help="Processes that each run the model, or auto: one on each GPU, or what is fastest.",
        ),
    ] = None
    ray: Annotated[
        str | None,
        _model(
            "--ray",
            metavar="ADDRESS",
            help="Run on a Ray cluster: auto, local or ray://host:10001; into a folder: -o DIR/.",
        ),
    ] = None
    ray_gpus: Annotated[
        float | None,
        number_option(
            "Model",
            "--ray-gpus",
            metavar="X",
            least=0.0,
            default="1 if the cluster has GPUs",
            help="GPUs of the cluster for each engine; 0.5: two engines on each.",
        ),
    ] = None
    ray_cpus: Annotated[
        int | None,
        number_option(
            "Model",
            "--ray-cpus",
            metavar="N",
            least=1,
            default="1",
            help="Cores of the cluster for each engine.",
        ),
    ] = None
    join: Annotated[
        bool,
        _model(
            "--join",
            help="Share the folder -o DIR/ with other runs of the command: each takes free parts.",
        ),
    ] = False
