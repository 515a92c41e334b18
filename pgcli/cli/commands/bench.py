"""bench: compare the speed of this code with transformers and with the machine's limit."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

from pgcli import __version__
from pgcli.cli.commands.info import ModelArgument
from pgcli.cli.options import CliCall, JsonOptions, LoadOptions, SourceOptions, command
from pgcli.cli.ui import stdout
from pgcli.cli.ui.console import Screen
from pgcli.declare import same
from pgcli.run.request.options import InputOptions, ModelOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions(JsonOptions):
    """The options of `bench`."""

    source: str | None = same(SourceOptions, "source")
    batch_size: int | None = same(ModelOptions, "batch_size")
    quantize: Literal["none", "int8", "fp8"] = same(ModelOptions, "quantize")
    fast_decode: bool = same(InputOptions, "fast_decode")


@command(
    "bench",
    "Runs pgcli and transformers alternately on the same checkpoint, prompt and pixels. Shows "
    "images per second from files to rows and of the model alone (by the clock and as the sum of "
    "its stages), the share of this machine's limit, and the share of equal tokens. Start is the "
    "time until the first image is decoded; busy is the share of the remaining time in which the "
    "model computes. Answers have 16 tokens. All runs take about half a minute, longer on slow "
    "machines.\n\n"
    "MODEL is a folder, a name on the Hub, or demo, the built-in model, which is the default.",
    BenchOptions,
    LoadOptions,
    examples="$ pgcli bench demo --batch-size 8\n"
    "$ pgcli bench google/paligemma2-3b-mix-224 --source photos",
)
def bench(call: CliCall, model: ModelArgument = None) -> None:
    from pgcli.cli.find_model import default_model, find_model
    from pgcli.cli.ui.bench_report import show_benchmark
    from pgcli.inputs import Inventory

    options, loading = call.build(BenchOptions), call.build(LoadOptions)
    source = None if options.source is None else Inventory.scan([options.source])
    screen = Screen()
    checkpoint = find_model(call, model or default_model("caption"), screen)
    with screen.status("loading PyTorch and transformers"):
        from pgcli.bench.benchmark import bench as measure
        from pgcli.verify.images import generate_images

    report = measure(
        checkpoint,
        generate_images() if source is None else iter(source),
        batch_size=options.batch_size,
        quantize=options.quantize,
        fast_decode=options.fast_decode,
        device=loading.device,
        dtype=loading.dtype,
        waiting=screen.status,
    )
    if options.json:
        names = {
            "name": checkpoint.name,
            "path": str(checkpoint.folder),
            "revision": checkpoint.revision,
        }
        stdout.print_json({"pgcli": __version__, "checkpoint": names, **asdict(report)})
    else:
        show_benchmark(report)
