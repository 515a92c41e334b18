"""bench: the speed of this code, of transformers, and the limit of the machine."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NewType

import typer

from pgcli import __version__
from pgcli.bench.settings import SCOPES, Scope
from pgcli.cli.commands.info import ModelArgument
from pgcli.cli.options import number_option, option
from pgcli.cli.shared_options import Device, Dtype, Quantize, Revision, images_option
from pgcli.cli.typer_app import command
from pgcli.cli.ui.console import Screen
from pgcli.run.request.options import MODELS
from pgcli.run.request.values import batch_size as read_batch_size

if TYPE_CHECKING:
    from pgcli.bench.report import BenchReport
    from pgcli.bench.settings import Lengths
    from pgcli.checkpoints.find import Checkpoint

_option = partial(option, own=True)
_number = partial(number_option, own=True)


# named types, as Typer treats a plain tuple as an option with several values
BatchSizes = NewType("BatchSizes", tuple[int, ...])
AUTO_SIZES = BatchSizes(())
Span = NewType("Span", tuple[int, int])
Scopes = NewType("Scopes", tuple[Scope, ...])
ALL_SCOPES = Scopes(SCOPES)


def batch_sizes(text: str | BatchSizes) -> BatchSizes:
    """Batch sizes separated by commas, sorted and without repeats; empty for `auto`."""
    if isinstance(text, tuple):
        return text  # the default
    try:
        sizes = {read_batch_size(part.strip()) for part in text.split(",")}
    except ValueError as problem:
        raise typer.BadParameter(str(problem)) from None
    if None in sizes and len(sizes) > 1:
        raise typer.BadParameter(f"{text!r} is neither auto nor a list of whole numbers: 1,8,64")
    return BatchSizes(tuple(sorted(size for size in sizes if size is not None)))


def span(text: str) -> Span:
    """A number of tokens, or the bounds of a random one."""
    found = re.fullmatch(r"([1-9]\d{0,4})(?:-([1-9]\d{0,4}))?", text, re.ASCII)
    if not found or int(found[1]) > int(found[2] or found[1]):
        raise typer.BadParameter(f"{text!r} is neither a number of tokens nor a span such as 4-64")
    return Span((int(found[1]), int(found[2] or found[1])))


def scopes(text: str | Scopes) -> Scopes:
    """Benchmark scopes separated by commas, in the order of SCOPES."""
    if isinstance(text, tuple):
        return text  # the default
    asked = {name.strip() for name in text.split(",")}
    if not asked <= set(SCOPES):
        raise typer.BadParameter(f"{text!r} is not a list of {', '.join(SCOPES)}")
    return Scopes(tuple(name for name in SCOPES if name in asked))


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
        Span | None,
        _option(
            "Answering",
            "--new-tokens",
            metavar="N",
            parser=span,
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
        Scopes,
        _option(
            "Running",
            "--scope",
            metavar="A,B",
            parser=scopes,
            choices=ALL_SCOPES,
            default="device,arrays,files",
            help="device: the model alone; arrays: pixels to tokens; files: files to rows.",
        ),
    ] = ALL_SCOPES,
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
        BatchSizes,
        _option(
            "Model",
            "--batch-size",
            metavar="A,B",
            parser=batch_sizes,
            default="1, 8 and what fits",
            help="Rows in one batch; several sizes are measured in turn.",
        ),
    ] = AUTO_SIZES,
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
    from pgcli.cli.find_model import find_model
    from pgcli.cli.ui.bench_report import show
    from pgcli.inputs import Inventory
    from pgcli.stores.writing import check_target

    for file, name in ((output, "-o"), (plot, "--plot")):
        if file is not None:
            check_target(Path(file), name, is_folder=False, overwrite=overwrite)
    source = None if images is None else Inventory.scan([images])
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
        waiting=screen.status,
    )
    show(report)
    write(report, checkpoint, output, plot)


def answer_lengths(new_tokens: Span | None, *, natural: bool) -> tuple[Lengths, ...]:
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
    from pgcli.stores.writing import wrap_write_errors

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
