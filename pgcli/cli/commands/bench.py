"""bench: the speed of this code, of transformers, and the limit of the machine."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pgcli import __version__
from pgcli.cli.commands.info import ModelArgument
from pgcli.cli.options import (
    MODELS,
    Device,
    Dtype,
    Quantize,
    Revision,
    images_option,
    number_option,
    option,
    values,
)
from pgcli.cli.typer_app import command
from pgcli.cli.ui.console import Screen

if TYPE_CHECKING:
    from pgcli.bench.report import BenchReport
    from pgcli.bench.settings import Lengths
    from pgcli.checkpoints.find import Checkpoint

_option = partial(option, own=True)
_number = partial(number_option, own=True)


@command(
    "bench",
    "Both run in turns on the same checkpoint, prompts and pixels. Shows the ratio of medians, the "
    "time of each stage, its share of the limit of this machine, and how many tokens are the "
    "same.\n\n"
    "MODEL is a folder, a name on the Hub, or demo, the built-in model, which is the default.",
    epilog="$ pgcli bench demo --batch-size 8 --scope device --rounds 1 --seconds 1\n"
    "$ pgcli bench google/paligemma-3b-mix-224 --images photos --plot speed.svg",
)
def bench(
    model: ModelArgument = MODELS[0],
    images: Annotated[
        str | None,
        images_option("Measure on the images of a folder.", default="drawn images"),
    ] = None,
    limit: Annotated[
        int | None,
        _number(
            "Input",
            "--limit",
            least=1,
            default="what --seconds allows",
            help="Images in each run.",
        ),
    ] = None,
    new_tokens: Annotated[
        values.Span | None,
        _option(
            "Answering",
            "--new-tokens",
            metavar="N",
            parser=values.span,
            default="16",
            help="Tokens of each answer, whatever the model says; 4-64 draws them from a range.",
        ),
    ] = None,
    natural: Annotated[
        bool,
        _option(
            "Answering",
            "--natural",
            help="Let answers end by themselves; with --new-tokens, measure both.",
        ),
    ] = False,
    scope: Annotated[
        values.Scopes,
        _option(
            "Running",
            "--scope",
            metavar="A,B",
            parser=values.scopes,
            choices=values.ALL_SCOPES,
            default="device,arrays,files",
            help="device: the model alone; arrays: pixels to tokens; files: files to rows.",
        ),
    ] = values.ALL_SCOPES,
    rounds: Annotated[
        int,
        _number(
            "Running",
            "--rounds",
            least=1,
            help="Runs of each program at each setting, in turns.",
        ),
    ] = 5,
    seconds: Annotated[
        float,
        _number(
            "Running",
            "--seconds",
            least=0.0,
            help="Time for all runs, which determines their number of images.",
        ),
    ] = 60.0,
    batch_size: Annotated[
        values.BatchSizes,
        _option(
            "Model",
            "--batch-size",
            metavar="A,B",
            parser=values.batch_sizes,
            default="1, 8 and what fits",
            help="Rows in one batch; several sizes are measured in turn.",
        ),
    ] = values.AUTO_SIZES,
    output: Annotated[
        str | None,
        _option(
            "Output",
            "--output",
            "-o",
            metavar="FILE",
            help="Write all results as JSON.",
        ),
    ] = None,
    plot: Annotated[
        str | None,
        _option(
            "Output",
            "--plot",
            metavar="FILE",
            help="Draw images per second against batch size, as an SVG.",
        ),
    ] = None,
    overwrite: Annotated[
        bool, _option("Output", "--overwrite", help="Replace existing files.")
    ] = False,
    revision: Revision = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    quantize: Quantize = "none",
) -> None:
    from pgcli.bench.settings import BenchPlan
    from pgcli.cli.answer_files import answer_files
    from pgcli.cli.find_model import find_model
    from pgcli.cli.ui.bench_report import show
    from pgcli.sources.open_sources import open_sources
    from pgcli.sources.read_options import ReadOptions
    from pgcli.state.destination import check_destination

    for file in filter(None, (output, plot)):
        check_destination(Path(file), overwrite=overwrite)
    source = None if images is None else open_sources([images], ReadOptions())
    screen = Screen()
    checkpoint = find_model(model, revision, screen)
    with screen.status("loading PyTorch and transformers"):
        from pgcli.bench.benchmark import bench as measure
        from pgcli.proof.generated_images import generate_images

    report = measure(
        checkpoint,
        generate_images() if source is None else iter(source),
        BenchPlan(
            batch_sizes=batch_size,
            scopes=scope,
            lengths=answer_lengths(new_tokens, natural=natural),
            rounds=rounds,
            seconds=seconds,
            images=limit,
            quantize=quantize,
        ),
        device=device,
        dtype=dtype,
        pipeline=answer_files,
        waiting=screen.status,
    )
    show(report)
    write(report, checkpoint, output, plot)


def answer_lengths(new_tokens: values.Span | None, *, natural: bool) -> tuple[Lengths, ...]:
    """The lengths of answers to measure: fixed or drawn ones, and those that the model ends."""
    from pgcli.bench.settings import Lengths
    from pgcli.tasks import MAX_NEW_TOKENS

    lengths = [] if natural and new_tokens is None else [Lengths(*(new_tokens or (16, 16)))]
    if natural:
        lengths.append(Lengths(1, MAX_NEW_TOKENS["caption"], natural=True))
    return tuple(lengths)


def write(
    report: BenchReport, checkpoint: Checkpoint, output: str | None, plot: str | None
) -> None:
    """Write the report as JSON and its plot as SVG, where they were asked for."""
    from pgcli.bench.plot import plot_svg
    from pgcli.state.write_errors import wrap_write_errors

    model = {
        "model": checkpoint.name,
        "path": str(checkpoint.folder),
        "revision": checkpoint.revision,
        "pgcli": __version__,
    }
    title = f"{checkpoint.label} on {report.machine.device}, {report.dtype}"
    texts = (json.dumps(model | asdict(report), indent=2) + "\n", plot_svg(report, title))
    for file, text in zip((output, plot), texts, strict=True):
        if file is not None:
            with wrap_write_errors(file):
                Path(file).write_text(text, encoding="utf-8")
