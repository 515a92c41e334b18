"""The options that commands share, declared once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pgcli.checkpoints.find import DEMO
from pgcli.cli import values
from pgcli.sources.reading import Reading

if TYPE_CHECKING:
    from pgcli.remote import Reach
    from pgcli.run.tolerance import Tolerance

MODELS = (DEMO, "google/paligemma-3b-mix-224", "google/paligemma-3b-mix-448")
DEVICES = ("auto", "cpu", "cuda", "cuda:0", "mps")


def models() -> list[str]:
    """Names that may be meant: usual ones, and those on this machine."""
    from pgcli.checkpoints.hub import known

    return list(dict.fromkeys([*MODELS, *known.names()]))


@dataclass
class Session:
    """What must be known of a command line even if it cannot be read to its end."""

    debug: bool = False


def remember(context: typer.Context, debug: bool) -> bool:
    """Keep `--debug` where the program finds it, also when a later option is wrong."""
    if isinstance(context.obj, Session):
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
_output = partial(option, "Output")
_model = partial(option, "Model")
_answering = partial(option, "Answering")
_running = partial(option, "Running")

# its panel would show Python's type of it: the commands' help explains it in words
Sources = Annotated[list[str], typer.Argument(metavar="SOURCE", hidden=True)]

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
    bool, _running("--debug", is_eager=True, callback=remember, help="Show tracebacks of errors.")
]


@dataclass(frozen=True, slots=True)
class Input:
    """Which pictures, and how a manifest names what it holds."""

    image_column: Annotated[
        str, _input("--image-column", metavar="NAME", help="Column of a manifest: the pictures.")
    ] = Reading.image_column
    id_column: Annotated[
        str, _input("--id-column", metavar="NAME", help="Column of a manifest: their ids.")
    ] = Reading.id_column
    prompt_column: Annotated[
        str, _input("--prompt-column", metavar="NAME", help="Column of a manifest: the prompts.")
    ] = Reading.prompt_column
    keep: Annotated[
        values.Columns,
        _input(
            "--keep",
            metavar="A,B",
            parser=values.columns,
            show_default=False,
            help="Columns of a manifest to copy to the output.",
        ),
    ] = values.NO_COLUMNS
    limit: Annotated[
        int | None,
        _input("--limit", metavar="N", parser=values.number(1), help="Stop after N rows."),
    ] = None
    sample: Annotated[
        int | None,
        _input(
            "--sample",
            metavar="N",
            parser=values.number(1),
            help="Only N pictures, spread over all of them.",
        ),
    ] = None
    shard: Annotated[
        str | None,
        _input(
            "--shard",
            metavar="I/N|auto",
            help="Only the I-th of N parts of the rows, from 0, into a folder: -o DIR/.",
        ),
    ] = None
    nul: Annotated[
        bool, _input("-0", help="Names on standard input end in NUL, as from find -print0.")
    ] = False
    workers: Annotated[
        int | None,
        _input(
            "--workers",
            metavar="N",
            parser=values.number(0),
            default="up to 4",
            help="Processes that decode pictures; 0: none but this one.",
        ),
    ] = None
    max_pixels: Annotated[
        int | None,
        _input(
            "--max-pixels",
            metavar="N",
            parser=values.number(1),
            default="89,478,485",
            help="Larger pictures are error rows.",
        ),
    ] = None
    fast_decode: Annotated[
        bool,
        _input(
            "--fast-decode",
            help="Decode large JPEGs small: several times as fast, of slightly other pixels.",
        ),
    ] = False
    allow_outside_root: Annotated[
        bool,
        _input(
            "--allow-outside-root",
            help="Follow links and paths that leave the folder or the manifest's folder.",
        ),
    ] = False
    allow_urls: Annotated[
        bool,
        _input(
            "--allow-urls", help="Read s3://, gs://, hf:// and http(s):// addresses, in rows too."
        ),
    ] = False
    allow_private_hosts: Annotated[
        bool,
        _input(
            "--allow-private-hosts",
            help="Let http(s):// addresses lead to this machine and its own network.",
        ),
    ] = False

    @property
    def reach(self) -> Reach | None:
        """The way to addresses, if there is to be one."""
        from pgcli.remote import Reach

        return Reach(allow_private_hosts=self.allow_private_hosts) if self.allow_urls else None


@dataclass(frozen=True, slots=True)
class Output:
    """Where the rows go, and as what."""

    output: Annotated[
        str,
        _output(
            "--output",
            "-o",
            metavar="FILE",
            help="A .jsonl or .parquet file; - is standard output.",
        ),
    ] = "-"
    format: Annotated[
        Literal["auto", "jsonl", "text"],
        _output(
            "--format",
            metavar="NAME",
            help="auto, jsonl or text; auto goes by the file's ending, and is text on a terminal.",
        ),
    ] = "auto"
    draw: Annotated[
        str | None,
        _output(
            "--draw",
            metavar="DIR",
            help="Paint boxes and masks on copies of the pictures, in this folder.",
        ),
    ] = None
    inline: Annotated[
        bool,
        _output(
            "--inline",
            help="Show each picture above its answer, in terminals that can (kitty, iTerm, sixel).",
        ),
    ] = False
    sidecar: Annotated[
        str | None,
        _output(
            "--sidecar",
            metavar=".ENDING",
            help="Write each answer to a text file beside its picture: photo.txt for photo.jpg.",
        ),
    ] = None
    no_timing: Annotated[
        bool,
        _output("--no-timing", help="Leave times and batch sizes null: equal runs, equal rows."),
    ] = False
    overwrite: Annotated[bool, _output("--overwrite", help="Replace an existing output.")] = False


@dataclass(frozen=True, slots=True)
class Model:
    """Which model, and where and in which numbers it runs."""

    model: Annotated[
        str | None,
        _model(
            "--model",
            metavar="NAME",
            choices=models,
            default=DEMO,
            help="A folder, a name on the Hub, or demo, the built-in one.",
        ),
    ] = None
    revision: Revision = None
    adapter: Annotated[
        str | None,
        _model(
            "--adapter",
            metavar="NAME",
            help="A LoRA to merge into the model: a folder or a name on the Hub.",
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
            help="Rows in one pass, or auto: as many as fit into memory.",
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class Answering:
    """How answers come out of the model."""

    max_new_tokens: Annotated[
        int | None,
        _answering(
            "--max-new-tokens",
            metavar="N",
            parser=values.number(1),
            default="caption 128, ask 64, detect 256, segment 512, ocr 512",
            help="Longest answer.",
        ),
    ] = None
    temperature: Annotated[
        float,
        _answering(
            "--temperature",
            metavar="X",
            parser=values.number(0.0),
            help="Above 0: draw answers at random; 0: the likeliest token each time.",
        ),
    ] = 0.0
    top_p: Annotated[
        float,
        _answering(
            "--top-p",
            metavar="X",
            parser=values.number(0.0, 1.0, above=True),
            help="Draw among the likeliest tokens that make up this share.",
        ),
    ] = 1.0
    top_k: Annotated[
        int,
        _answering(
            "--top-k",
            metavar="N",
            parser=values.number(0),
            help="Draw among the N likeliest tokens; 0: among all.",
        ),
    ] = 0
    seed: Annotated[
        int,
        _answering(
            "--seed",
            metavar="N",
            parser=values.number(0),
            help="Equal seeds draw equal answers, whatever the batches.",
        ),
    ] = 0
    region: Annotated[
        values.Region | None,
        _answering(
            "--region",
            metavar="BOX",
            parser=values.region,
            help="Ask about xmin,ymin,xmax,ymax, in pixels of each upright picture.",
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class Running:
    """What a run does about errors, and how much it says."""

    on_error: Annotated[
        Literal["record", "stop"],
        _running(
            "--on-error",
            metavar="WHAT",
            help="record: an unreadable picture is an error row; stop: end at the first one.",
        ),
    ] = "record"
    max_errors: Annotated[
        values.MaxErrors | None,
        _running(
            "--max-errors",
            metavar="N|P%",
            parser=values.max_errors,
            default="50 in a row",
            help="Stop when more rows have errors.",
        ),
    ] = None
    retry_errors: Annotated[
        bool,
        _running("--retry-errors", help="Ask the rows with errors again; the others stay."),
    ] = False
    dry_run: Annotated[
        bool, _running("--dry-run", help="Check everything, say what would be done, and stop.")
    ] = False
    quiet: Quiet = False
    verbose: Annotated[bool, _running("--verbose", "-v", help="Say also what will be done.")] = (
        False
    )
    debug: Debug = False

    @property
    def tolerance(self) -> Tolerance:
        """How many error rows are borne."""
        from pgcli.run.tolerance import Tolerance  # not for --help, which is to be quick

        most, share = self.max_errors or (None, None)
        return Tolerance(most=most, share=share, none=self.on_error == "stop")


@dataclass(frozen=True, slots=True)
class Options:
    """Every option that every answering command has."""

    input: Input
    output: Output
    model: Model
    answering: Answering
    running: Running
