"""The options of every run, in one record for each concern; other commands share some of them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from pgcli.boxes import parse_region
from pgcli.checkpoints.find import DEMO, DEMO_TOWERS
from pgcli.declare import opt
from pgcli.records import Region

if TYPE_CHECKING:
    from pgcli.images import ImageLimits
    from pgcli.inputs.options import NameFilter
    from pgcli.stores import Reader


@dataclass(frozen=True)
class ErrorBudget:
    """At most `max_errors` failed rows, or a `max_share` of all rows.

    Without either, 50 consecutive failed rows end the run; with
    `stop_on_error`, the first one does.
    """

    max_errors: int | None = None
    max_share: float | None = None
    stop_on_error: bool = False


Dtype = Literal["auto", "bfloat16", "float16", "float32"]
DEVICE = re.compile(r"auto|cpu|mps|cuda(:\d+)?")


def plain_text(value: object) -> str:
    """A text or number as the command line would give it."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"must be text or a number, not {value!r}")
    return str(value)


def device(value: object) -> str:
    """A device name. Loading the model checks whether the machine has the device."""
    if not isinstance(value, str) or not DEVICE.fullmatch(value):
        raise ValueError(f"must be auto, cpu, cuda, cuda:N or mps, not {value!r}")
    return value


def region(value: Any) -> Region:
    """A non-empty box: xmin, ymin, xmax and ymax in pixels."""
    try:
        return parse_region(value)
    except ValueError as problem:
        raise ValueError(f"{problem}, not {value!r}") from None


def max_errors(value: object) -> ErrorBudget:
    """The number of error rows that a run allows, `N`, or their share of all rows, `P%`."""
    text = plain_text(value)
    if text.endswith("%"):
        return ErrorBudget(max_share=percentage(text))
    return ErrorBudget(max_errors=plain_count(text))


def count_or_share(value: object) -> float:
    """A number of steps, `N`, or a share of all of them, `P%` or a fraction below 1."""
    if isinstance(value, float) and 0 <= value < 1:
        return value
    text = plain_text(value)
    return min(percentage(text), 0.999_999) if text.endswith("%") else float(plain_count(text))


def percentage(text: str) -> float:
    """A percentage, `P%`, as a number of 0 to 1."""
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        number = -1.0
    if not 0 <= number <= 100:
        raise ValueError(f"must be a percentage from 0% to 100%, not {text!r}")
    return number / 100


def plain_count(text: str) -> int:
    """A whole number of 0 or more, for options that also accept a percentage."""
    try:
        number = int(text)
    except ValueError:
        number = -1
    if not 0 <= number <= 10**18:
        raise ValueError(f"must be a whole number or a percentage such as 5%, not {text!r}")
    return number


_model = partial(opt, panel="Which model", affects_rows=False)
_input = partial(opt, panel="Which images")
_glob = partial(_input, metavar="GLOB", repeat=True)
_allow = partial(_input, default=False, affects_rows=False)
_answering = partial(opt, panel="What to ask")
_output = partial(opt, panel="Where to", affects_rows=False)
_running = partial(opt, panel="How to run", affects_rows=False)
_flag = partial(_running, default=False)

#: Names that the completion of shells offers.
MODELS = (DEMO, "google/paligemma2-3b-mix-224", "google/paligemma2-3b-mix-448")
DEVICES = ("auto", "cpu", "cuda", "cuda:0", "mps")


def models() -> list[str]:
    """Common names of models, and those on this machine."""
    from pgcli.checkpoints.find import cached_models

    return list(dict.fromkeys([*MODELS, *cached_models()]))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """The model, the device and dtype that it runs with, and the processes that run it.

    A run records what `model`, `revision` and `dtype` resolve to: these are not compared as given.
    """

    model: str | None = _model(
        "Model to use: a folder, a name on the Hub, or a built-in model.",
        metavar="NAME",
        choices=models,
        default_text=f"{DEMO}, or {DEMO_TOWERS} for embed, score and classify",
    )
    revision: str | None = _model("Branch, tag or commit of the model on the Hub.", metavar="NAME")
    adapter: str | None = _model(
        "LoRA adapter to merge into the model: a folder or a name on the Hub.",
        metavar="NAME",
        affects_rows=True,
    )
    device: str = _model(
        "Where to run the model; auto picks a GPU if there is one.",
        default="auto",
        metavar="[auto|cpu|cuda|cuda:N|mps]",
        parse=device,
        choices=DEVICES,
    )
    dtype: Dtype = _model(
        "Data type of the weights; auto picks bfloat16 where it is fast, float32 is most exact.",
        default="auto",
    )
    quantize: Literal["none", "int8", "fp8"] = _model(
        "Quantize the decoder to 8 bits: int8 on CPUs, fp8 on new GPUs; less exact.",
        default="none",
        affects_rows=True,
    )
    batch_size: int | None = _model(
        "Rows per batch; auto takes as many as fit into memory.",
        min=1,
        max=999_999,
        auto=True,
    )
    engines: int | None = _model(
        "Number of processes that run the model; auto: one per GPU; on a CPU, the fastest count.",
        min=1,
        max=999,
        auto=True,
    )
    ray: str | None = _model(
        "Run on a Ray cluster: auto, local or ray://host:10001; needs -o DIR/.",
        metavar="ADDRESS",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class InputOptions:
    """The images to read, and the columns of a manifest."""

    image_column: str = _input(
        "Manifest column with the images; in archives, the image's extension, such as seg.png.",
        default="image",
        metavar="NAME",
    )
    id_column: str = _input("Manifest column with the ids.", default="id", metavar="NAME")
    prompt_column: str = _input(
        "Manifest column with the prompts.", default="prompt", metavar="NAME"
    )
    keep: tuple[str, ...] = _input(
        "Copy these manifest columns to the output; repeatable.",
        metavar="A,B",
        repeat=True,
        commas=True,
    )
    limit: int | None = _input("Read only the first N rows.", min=1, affects_rows=False)
    shard: str | None = _input(
        "Answer only shard I of N, counted from 0; needs -o DIR/.",
        metavar="I/N|auto",
        affects_rows=False,
    )
    include: tuple[str, ...] = _glob(
        "Read only images and files whose relative path or id matches; * also matches slashes; "
        "repeatable."
    )
    exclude: tuple[str, ...] = _glob(
        "Skip images and files whose relative path or id matches; repeatable."
    )
    null: bool = _input(
        "Split standard input at NUL bytes, as find -print0 writes them.",
        default=False,
        short=("-0",),
        affects_rows=False,
        seldom=True,
    )
    workers: int | None = _input(
        "Number of processes that decode images; 0 decodes in the main process.",
        min=0,
        max=256,
        default_text="up to 4; for a GPU all cores but 1",
        affects_rows=False,
    )
    max_pixels: int | None = _input(
        "Largest image to decode, in pixels; larger ones become failed rows.",
        min=1,
        default_text="89,478,485",
    )
    fast_decode: bool = _input(
        "Decode large JPEGs at a reduced size: several times faster; pixels differ slightly.",
        default=False,
    )
    allow_outside_root: bool = _allow(
        "Follow links and paths that lead out of the folder of the images or manifest."
    )
    allow_urls: bool = _allow(
        "Read s3://, gs://, az://, hf:// and http(s):// URLs, also in manifests and rows."
    )
    allow_private_hosts: bool = _allow(
        "Allow http(s):// URLs on this machine and its private network.", seldom=True
    )

    @property
    def names(self) -> NameFilter:
        """The images to read, by their names."""
        from pgcli.inputs.options import NameFilter

        return NameFilter(self.include, self.exclude)

    @property
    def image_limits(self) -> ImageLimits:
        """The size limits of images."""
        from pgcli.images import ImageLimits

        most = self.max_pixels
        return ImageLimits() if most is None else ImageLimits(max_pixels=most)

    @property
    def url_reader(self) -> Reader | None:
        """The reader of URLs, if these are allowed."""
        from pgcli.stores import make_reader

        return make_reader(allow_urls=self.allow_urls, allow_private_hosts=self.allow_private_hosts)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweringOptions:
    """How answers are generated."""

    max_new_tokens: int | None = _answering(
        "Longest answer, in tokens.",
        min=1,
        default_text="caption 128, ask 64, detect 256, segment, ocr 512; Gemma 3: 256, ocr 1,024",
    )
    system: str | None = _answering(
        "Text that opens each conversation, for models that follow instructions (Gemma 3).",
        metavar="TEXT",
        seldom=True,
    )
    temperature: float = _answering(
        "Randomness of answers: 0 always takes the most likely token, higher values sample.",
        default=0.0,
        min=0.0,
    )
    top_p: float = _answering(
        "Sample among the most likely tokens whose probabilities sum to this.",
        default=1.0,
        min=0.0,
        max=1.0,
        above=True,
        seldom=True,
    )
    top_k: int = _answering(
        "Sample among the N most likely tokens; 0 means 1,024.",
        default=0,
        min=0,
        seldom=True,
    )
    seed: int = _answering(
        "Random seed for sampling; the same seed gives the same answers at every batch size.",
        default=0,
        min=0,
    )
    region: Region | None = _answering(
        "Ask about this part of each image: xmin,ymin,xmax,ymax, in pixels of the upright image.",
        metavar="BOX",
        parse=region,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions:
    """Where rows, drawings and text files are written, and in which format."""

    output: str = _output(
        "Where to write: a .jsonl or .parquet file, or folder/ for Parquet files, here or "
        "at s3://, gs:// or az://; - is standard output.",
        default="-",
        metavar="FILE",
        short=("-o",),
    )
    format: Literal["auto", "jsonl", "text"] = _output(
        "Format of the output; auto follows the file's extension, and is text on a terminal.",
        default="auto",
    )
    draw: str | None = _output(
        "Draw boxes and masks on copies of the images, in this folder.",
        metavar="DIR",
    )
    sidecar: str | None = _output(
        "Write each answer to a text file next to its image: photo.txt for photo.jpg.",
        metavar=".EXT",
    )
    no_timing: bool = _output(
        "Write null for times and batch sizes, so that equal runs write equal rows.",
        default=False,
        affects_rows=True,
        seldom=True,
    )
    rows_per_file: int | None = _output(
        "Rows per file, in a folder of Parquet files.",
        min=1,
        max=10**9 - 1,
        default_text="10,000, or a shard's fair part",
        affects_rows=True,
        seldom=True,
    )
    overwrite: bool = _output("Replace an existing output, and existing text files.", default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningOptions:
    """What a run does about errors, and how much it prints. Rows depend on none of it."""

    on_error: Literal["record", "stop"] = _running(
        "What to do about an unreadable image: record writes a failed row, stop ends the run.",
        default="record",
    )
    max_errors: ErrorBudget | None = _running(
        "Stop when more rows than this have failed, as a number or a percentage.",
        metavar="N|P%",
        parse=max_errors,
        default_text="50 in a row",
    )
    retry_errors: bool = _flag("Answer failed rows again and keep the others.")
    retry_changed: bool = _flag(
        "Answer rows again if their image has changed, and keep the others."
    )
    dry_run: bool = _flag("Check everything, print the plan, and exit.")
    quiet: bool = _flag("Print errors only.", short=("-q",))
    verbose: bool = _flag("Print the plan, and the time of each stage.", short=("-v",))

    @property
    def error_budget(self) -> ErrorBudget:
        """How many error rows end the run."""
        budget = self.max_errors or ErrorBudget()
        return replace(budget, stop_on_error=self.on_error == "stop")


#: The options of every answering command, besides the options of its question.
SHARED_OPTIONS = (InputOptions, OutputOptions, ModelOptions, AnsweringOptions, RunningOptions)
