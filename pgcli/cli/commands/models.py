"""Commands about a model and this machine: info, verify, bench, doctor and explain."""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pgcli import tasks
from pgcli.cli.config import find_config, read_config_file
from pgcli.cli.console import Screen, print_facts, print_json
from pgcli.cli.options import CliCall, JsonOptions, LoadOptions, command
from pgcli.declare import opt, same
from pgcli.errors import Difference, NoInputError, NoUsableDevice, UsageError
from pgcli.run.options import Dtype, InputOptions, ModelOptions, RunningOptions, models
from pgcli.text import byte_count
from pgcli.version import __version__

if TYPE_CHECKING:
    from pgcli.checkpoints.find import Checkpoint
    from pgcli.doctor.checks import Finding
    from pgcli.records import Item
    from pgcli.tasks import Question


ModelArgument = Annotated[
    str | None, typer.Argument(metavar="MODEL", hidden=True, autocompletion=models)
]


@dataclass(frozen=True, slots=True, kw_only=True)
class InfoOptions(JsonOptions):
    """The options of `info`."""

    quantize: Literal["none", "int8", "fp8"] = same(ModelOptions, "quantize")


@command(
    "info",
    "MODEL is a folder, a name on the Hub, or demo, the built-in model, which is the default; "
    "PaliGemma, ColPali, SigLIP, CLIP, or an image classifier.",
    InfoOptions,
    LoadOptions,
    examples="$ pgcli info demo\n$ pgcli info google/paligemma2-3b-mix-224 --quantize int8",
)
def info(call: CliCall, model: ModelArgument = None) -> None:
    from pgcli.cli.reports import info_facts
    from pgcli.cli.run_on_screen import default_model, find_model

    shown, options = call.build(InfoOptions), call.build(LoadOptions)
    checkpoint = find_model(call, model or default_model(), Screen())
    from pgcli.checkpoints.config import read_description
    from pgcli.checkpoints.families import GENERATING
    from pgcli.info.model_info import (
        model_info,
        tower_info,  # torch, which takes a second
    )

    description = read_description(checkpoint.folder)
    if description.kind in (*GENERATING, "multi_vector"):
        values = model_info(
            checkpoint, device=options.device, dtype=options.dtype, quantize=shown.quantize
        )
    elif shown.quantize != "none":
        raise UsageError(
            f"--quantize does not apply to {checkpoint.name}",
            hint="only models that generate text can be quantized",
        )
    else:
        values = tower_info(checkpoint, description, device=options.device, dtype=options.dtype)
    if shown.json:
        print_json(values)
    else:
        print_facts(info_facts(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions(LoadOptions):
    """The options of `verify`."""

    source: str | None = opt(
        "Images to use instead of drawings: a folder, or another source.",
        panel="Which images",
        metavar="SOURCE",
        own=True,
    )
    dtype: Dtype = same(  # noqa: RUF009
        LoadOptions, "dtype", "Data types to compare in; auto is float32, then bfloat16."
    )


@command(
    "verify",
    "Runs pgcli and transformers on the same inputs and compares vision features, prefill logits "
    "and generated tokens; embeddings and logits of SigLIP, CLIP and image classifiers.\n\n"
    "MODEL is a folder, a name on the Hub, or demo, the built-in model. Exits with 5 if "
    "results differ by more than rounding.",
    VerifyOptions,
    JsonOptions,
    examples="$ pgcli verify demo\n$ pgcli verify google/paligemma2-3b-mix-224 --source photos",
)
def verify(
    model: Annotated[str, typer.Argument(metavar="MODEL", hidden=True, autocompletion=models)],
    call: CliCall,
) -> None:
    from pgcli.cli.reports import verify_facts, verify_hint
    from pgcli.cli.run_on_screen import find_model
    from pgcli.inputs import Inventory

    options = call.build(VerifyOptions)
    source = None if options.source is None else Inventory.scan([options.source])
    screen = Screen()
    checkpoint = find_model(call, model, screen)
    with screen.status("loading PyTorch and transformers"):
        from pgcli.verify.reference import MAX_IMAGES, default_images
        from pgcli.verify.verify import prove

        items = default_images() if source is None else [*source.items(0, MAX_IMAGES)]
    proof = prove(
        checkpoint, items, device=options.device, dtype=options.dtype, waiting=screen.status
    )
    if call.build(JsonOptions).json:
        named = {"name": model, "path": str(checkpoint.folder), "revision": checkpoint.revision}
        verdict = {"pgcli": __version__, "same": proof.same, "verdict": proof.verdict}
        print_json(named | verdict | asdict(proof))
    else:
        print_facts([*verify_facts(proof)])
    if not proof.same:
        raise Difference(proof.verdict, hint=verify_hint(proof))


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions(JsonOptions):
    """The options of `bench`."""

    source: str | None = same(VerifyOptions, "source")
    batch_size: int | None = same(ModelOptions, "batch_size")
    quantize: Literal["none", "int8", "fp8"] = same(ModelOptions, "quantize")
    fast_decode: bool = same(InputOptions, "fast_decode")


@command(
    "bench",
    "Runs pgcli and transformers alternately on the same checkpoint, prompt and pixels. Shows "
    "images per second from files to rows and of the model alone, the time of its stages, the "
    "share of this machine's limit, and the share of equal tokens. Start is the time until the "
    "first image is decoded; busy is the share of the remaining time in which the model computes. "
    "Answers have 16 tokens. All runs take about half a minute, longer on slow "
    "machines.\n\n"
    "MODEL is a folder, a name on the Hub, or demo, the built-in model, which is the default.",
    BenchOptions,
    LoadOptions,
    examples="$ pgcli bench demo --batch-size 8\n"
    "$ pgcli bench google/paligemma2-3b-mix-224 --source photos",
)
def bench(call: CliCall, model: ModelArgument = None) -> None:
    from pgcli.cli.reports import show_benchmark
    from pgcli.cli.run_on_screen import default_model, find_model
    from pgcli.inputs import Inventory

    options, loading = call.build(BenchOptions), call.build(LoadOptions)
    source = None if options.source is None else Inventory.scan([options.source])
    screen = Screen()
    checkpoint = find_model(call, model or default_model(), screen)
    with screen.status("loading PyTorch and transformers"):
        from pgcli.bench.benchmark import bench as measure
        from pgcli.verify.reference import generate_images

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
        print_json({"pgcli": __version__, "checkpoint": names, **asdict(report)})
    else:
        show_benchmark(report)


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions(JsonOptions):
    """The options of `doctor`."""

    exit_code: bool = opt(
        "Exit with 5 if any check fails.", panel="How to run", default=False, own=True
    )


@command(
    "doctor",
    "Checks packages, PyTorch and its build, driver, memory, disk, the Hub's cache and login. "
    "Changes nothing. Exits with 17 if no model can run here, otherwise with 0, whatever the "
    "problems; with --exit-code, with 5 if any check fails.",
    DoctorOptions,
    examples="$ pgcli doctor\n$ pgcli doctor --json",
    reads_config=False,  # an invalid file is one of the findings
)
def doctor(call: CliCall) -> None:
    from pgcli.cli.reports import show_findings
    from pgcli.doctor.checks import TORCH, examine

    options = call.build(DoctorOptions)
    with Screen().status("checking this machine"):
        settings = check_config(call.values.get("config") or os.environ.get("PGCLI_CONFIG"))
        findings = [settings, *examine()]
    show_findings(findings, as_json=options.json)
    bad = [finding for finding in findings if finding.state == "bad"]
    for finding in bad:
        if finding.name == TORCH:
            message = f"no model can run here: PyTorch {finding.description}"
            raise NoUsableDevice(message, hint=finding.remedy)
    if options.exit_code and bad:
        names = ", ".join(finding.name for finding in bad)
        raise Difference(f"bad on this machine: {names}", hint=bad[0].remedy)


def check_config(named: str | None) -> Finding:
    """Whether the configuration file, the named one or the user's, is valid."""
    from pgcli.doctor.checks import bad, ok

    try:
        file = find_config(named)
        read_config_file(file)
    except UsageError as problem:
        return bad("settings", str(problem), problem.hint)
    return ok("settings", str(file) if file.exists() else f"defaults; {file} would change them")


PAGE = "explanation.html"
THUMBNAIL_SIDE = 1024
Layers = tuple[int, ...]  # from 0; `()` are all of them

_asking = partial(opt, panel="What to ask", own=True)
_output = partial(opt, panel="Where to", own=True)


def parse_layers(text: Any) -> Layers:
    """Layers of the decoder, which are counted from 1, or `all`."""
    if text == "all":
        return ()
    if not re.fullmatch(r"[0-9]{1,4}(,[0-9]{1,4})*", str(text)) or 0 in (
        numbers := [*map(int, str(text).split(","))]
    ):
        raise ValueError(f"must be all or layers from 1, such as 1,4,8, not {text!r}")
    return tuple(number - 1 for number in numbers)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainOptions:
    """The options of `explain`."""

    prompt: str = _asking("Prompt about the image.", default="caption en", metavar="TEXT")
    layers: tuple[int, ...] | None = _asking(
        "Decoder layers whose attention to show, counted from 1.",
        metavar="[all|N,N...]",
        parse=parse_layers,
        default_text="up to 8, evenly spread",
    )
    max_new_tokens: int | None = _asking("Longest answer, in tokens.", min=1, default_text="64")
    output: str = _output("Page to write.", default=PAGE, metavar="FILE", short=("-o",))
    overwrite: bool = _output("Replace the file even if it is not a pgcli page.", default=False)
    quiet: bool = same(RunningOptions, "quiet")


@command(
    "explain",
    "MODEL is a PaliGemma checkpoint: a folder, a name on the Hub, or demo, the built-in model. "
    "The page is self-contained: it needs no network and no server.",
    ExplainOptions,
    LoadOptions,
    examples='$ pgcli explain demo photo.jpg --prompt "what is there?"\n'
    "$ pgcli explain google/paligemma2-3b-mix-224 photo.jpg --layers 6,12,18",
)
def explain(
    model: Annotated[str, typer.Argument(metavar="MODEL", hidden=True, autocompletion=models)],
    image: Annotated[str, typer.Argument(metavar="IMAGE", hidden=True)],
    call: CliCall,
) -> None:
    from pgcli.cli.run_on_screen import find_model
    from pgcli.results.pages import page_target

    options, loading = call.build(ExplainOptions), call.build(LoadOptions)
    if not options.prompt.strip():
        raise UsageError("the prompt is empty", hint='write --prompt "what is this?"')
    question = tasks.ask([options.prompt], max_new_tokens=options.max_new_tokens)
    item = one_item(image, question)
    target = page_target(options.output, inputs=[image], overwrite=options.overwrite)
    target.check()
    screen = Screen(quiet=call.quiet)
    checkpoint = find_model(call, model, screen)
    check_generates(checkpoint)
    with screen.status(f"explaining {item.id}"):
        page = make_page(checkpoint, item, question, options.layers, loading)
    with target.publish() as temporary:
        temporary.write_bytes(page)
    screen.info(f"{target.name}: {byte_count(len(page))}")


def one_item(image: str, question: Question) -> Item:
    """The one image that the source has, with its prompt. Raises UsageError and NoInputError."""
    from pgcli.inputs import Inventory

    items = list(tasks.with_prompts(Inventory.scan([image]).items(0, 2), question))
    if not items:
        raise NoInputError(f"{image} has no image", hint="name an image")
    if len(items) > 1:
        raise UsageError(f"{image} has several images", hint="name one of them")
    return items[0]


def check_generates(checkpoint: Checkpoint) -> None:
    """Raise UsageError for a model that generates no answers, and InvalidCheckpoint."""
    from pgcli.checkpoints.config import read_description

    if read_description(checkpoint.folder).kind != "paligemma":
        raise UsageError(
            f"{checkpoint.name} is another kind of model; explain needs PaliGemma",
            hint="name a PaliGemma checkpoint, for example demo or google/paligemma2-3b-mix-224",
        )


def make_page(
    checkpoint: Checkpoint,
    item: Item,
    question: Question,
    layers: Layers | None,
    loading: LoadOptions,
) -> bytes:
    """The page, once the model has answered."""
    from pgcli.engine.loader import open_engine  # torch, which takes a second
    from pgcli.explain.explain import explain as explain_answer
    from pgcli.explain.explain import render_explanation
    from pgcli.images import ImageLimits, decode
    from pgcli.results.gallery import ThumbnailMaker

    engine = open_engine(checkpoint, device=loading.device, dtype=loading.dtype, batch_size=1)
    image = decode(item, engine.spec, ImageLimits())
    explanation = explain_answer(engine, image, question, layers)
    thumbnail = ThumbnailMaker(THUMBNAIL_SIDE, ImageLimits())(item).pixels
    assert thumbnail is not None  # the image has been decoded
    return render_explanation(explanation, image, thumbnail.tobytes()).encode()
