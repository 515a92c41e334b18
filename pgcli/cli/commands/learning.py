"""Commands of learning: train and eval."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from pgcli import registry
from pgcli.boxes import split_locations
from pgcli.checkpoints.find import find
from pgcli.cli.console import Screen
from pgcli.cli.options import AddressOptions, CliCall, FileArgs, JsonOptions, command
from pgcli.cli.run_on_screen import Downloads
from pgcli.declare import REQUIRED, opt, same
from pgcli.errors import UsageError
from pgcli.inputs.options import PROMPT_COLUMNS
from pgcli.labels.columns import ANSWER_COLUMNS
from pgcli.results.options import ImageOptions
from pgcli.run.options import RunningOptions
from pgcli.text import count, listed, one_of
from pgcli.training.options import TRAIN_RECORDS, TrainOptions

if TYPE_CHECKING:
    from pgcli.evaluation.measures import Estimate


@command(
    "train",
    "SOURCE is any source of the answering commands. A manifest has columns prefix or prompt, and "
    "suffix or answer; --task contrastive needs a column text, --task classify a column label, or "
    "a folder with a folder for each label.\n\n"
    "-o DIR gets an adapter, or with --method full or --task a model. With evaluations, DIR has "
    "the best weights and DIR/last the last ones. The same command resumes an interrupted run; on "
    "one CPU the weights are then the same bit for bit.",
    *TRAIN_RECORDS,
    examples="$ pgcli train rows.jsonl --model google/paligemma2-3b-pt-224 -o runs/lora\n"
    "$ pgcli train flowers --task classify --init tiny -o runs/flowers\n"
    "$ pgcli train pairs.jsonl --task contrastive --init small -o runs/towers",
)
def train(
    sources: Annotated[list[str], typer.Argument(metavar="SOURCE", hidden=True)], call: CliCall
) -> None:
    raise typer.Exit(run_training(TrainOptions.of(sources, call.values, call.typed)))


def run_training(options: TrainOptions) -> int:
    """Train and show the progress; return the exit code, 3 if rows were unusable."""
    screen = Screen(quiet=options.quiet)
    with screen.status("loading PyTorch"):
        from pgcli.cli.run_on_screen import RunOnScreen
        from pgcli.training.processes import OtherProcessFailed, joined_processes
        from pgcli.training.run import train
    try:
        with joined_processes(options.device) as processes:
            screen = Screen(quiet=options.quiet or not processes.is_first)
            for line in options.ignored:
                screen.info(line)
            shown = RunOnScreen(screen)
            try:
                summary = train(
                    options,
                    shown,
                    lambda name, revision: find(name, revision, progress=Downloads(screen)),
                    processes,
                )
            finally:
                shown.close()
    except OtherProcessFailed as problem:
        return problem.exit_code
    if summary is None:
        return 0
    screen.table(summary.facts(options.folder))
    if summary.unusable:
        rows = [f"{key[0]}: {why}" for key, why in summary.unusable.items()]
        lost = summary.count_unusable
        screen.info(f"skipped {count(lost, 'unusable row')}: {listed(rows, separator=';')}")
    kind = "adapter" if options.task is None and options.method == "lora" else "model"
    screen.info(f"the trained {kind} is in {options.folder}", hint=use_of(options, summary.example))
    return summary.exit_code


def use_of(options: TrainOptions, example: str) -> str:
    """A command that uses the trained model, for an example of its prompts or texts."""
    folder = shlex.quote(str(options.folder))
    model = f"--model {folder}"
    if options.task is None and options.method == "lora":
        model = f"--model {shlex.quote(options.model or '')} --adapter {folder}"
    if options.task == "contrastive":
        return f"pgcli score photos {model} --text {shlex.quote(example)}"
    if options.task == "classify":
        return f"pgcli classify photos {model}"
    prompt, _ = split_locations(example)
    return f"pgcli ask photos {model} --prompt {shlex.quote(prompt)}"


_input = partial(opt, panel="Which images", own=True)
_metrics = partial(opt, panel="Metrics", own=True)
_page = partial(opt, panel="Where to", own=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalOptions:
    """The options of `eval`."""

    truth: str = _input(
        "Ground truth: a manifest or result file with answers or boxes (.jsonl, .csv, .tsv, "
        ".parquet), annotations (COCO, YOLO, Label Studio or VQA), or a folder with one folder of "
        "images per label; "
        "with --allow-urls also a URL.",
        default=REQUIRED,
        metavar="FILE",
    )
    metric: str = _metrics(
        f"What to measure: {', '.join(registry.BUILT_IN['metrics'])}"
        "; auto chooses by the task and the columns of the truth.",
        default="auto",
        metavar="NAME",
        choices=lambda: ["auto", *registry.names("metrics")],
        parse=lambda value: registry.parse_name("metrics", value, "auto"),
    )
    by: str | None = _metrics(
        "Also measure each group of rows with the same value in this column (of rows or truth).",
        metavar="COLUMN",
    )
    only_common: bool = _metrics(
        "Ignore missing rows and rows without ground truth.", default=False
    )
    id_column: str = _input("Manifest column with the ids.", default="id", metavar="NAME")
    prompt_column: str | None = _input(
        "Manifest column with the prompts; '' joins rows by id alone.",
        metavar="NAME",
        default_text=one_of(PROMPT_COLUMNS),
    )
    answer_column: str | None = _input(
        "Manifest column with the answers.",
        metavar="NAME",
        default_text=one_of(ANSWER_COLUMNS),
    )
    texts: str | None = _input(
        "For retrieval: text embeddings from pgcli embed --texts-file.", metavar="FILE"
    )
    view: str | None = _page(
        "Write a page with the metrics and the worst rows beside the truth.", metavar="FILE"
    )
    worst: int = _page("Number of worst rows to show on the page.", default=300, min=1)
    overwrite: bool = _page("Replace the file even if it is not a pgcli page.", default=False)
    images: str | None = same(ImageOptions, "images")
    quiet: bool = same(RunningOptions, "quiet")


@command(
    "eval",
    "pgcli joins rows with --truth by id and prompt. Each metric has a 95 % bootstrap interval "
    "over images. Missing rows and rows without ground truth count as wrong. With two result "
    "files, eval also prints the differences, with paired bootstrap intervals.",
    EvalOptions,
    AddressOptions,
    JsonOptions,
    examples="$ pgcli eval captions.jsonl --truth truth.csv\n"
    "$ pgcli eval captions.jsonl again.jsonl --truth truth.csv --json",
)
def eval_(results: FileArgs, call: CliCall) -> None:
    from pgcli.cli import reports as printed
    from pgcli.cli.run_on_screen import RunOnScreen
    from pgcli.evaluation.evaluate import compare_files, evaluate, write_worst_rows
    from pgcli.evaluation.join import join, only_common, paired, read_truth
    from pgcli.labels.columns import LabelColumns
    from pgcli.results.image_locator import ImageLocator
    from pgcli.results.options import GalleryOptions
    from pgcli.results.pages import page_target

    options, screen = call.build(EvalOptions), Screen(quiet=call.quiet)
    metric, texts, truth, view = options.metric, options.texts, options.truth, options.view
    locator = ImageLocator(
        RunOnScreen(screen),
        options.images,
        call.build(AddressOptions).url_reader,
    )
    if len(results) > 2:
        raise UsageError(
            f"{len(results)} result files are given", hint="name one, or two to compare"
        )
    if view is None:
        call.report_unused(("worst", "overwrite"), "without --view", screen)
    else:
        read = filter(None, (*results, truth, texts))
        page_target(view, "--view", inputs=read, overwrite=options.overwrite).check()
    with screen.status("reading rows"):
        columns = LabelColumns(options.prompt_column, options.answer_column)
        reader = call.build(AddressOptions).url_reader
        truths = read_truth(truth, columns, options.id_column, reader)
        joined = [join(name, truths) for name in results]
    for remark in truths.remarks:
        screen.info(f"{truths.name}: {remark}")
    if options.only_common:
        joined = only_common(joined)
    with screen.status("computing metrics"):
        evaluations = [evaluate(file, metric, texts, options.by) for file in joined]
        measured = {part.metric for evaluation in evaluations for part in evaluation.measured}
        if "retrieval" not in measured:
            call.report_unused(("texts",), f"on {', '.join(sorted(measured))}", screen)
        differences: dict[str, Estimate] = {}
        if len(joined) == 2:
            before, after = paired(*joined)
            differences = compare_files(before, after, metric, texts)
    if view is not None:
        page = call.build(GalleryOptions, output=view, option="--view", limit=options.worst)
        write_worst_rows(evaluations, differences, page, locator)
    if call.build(JsonOptions).json:
        printed.print_as_json(evaluations, differences)
    else:
        printed.print_as_text(evaluations, differences, options.by)
    for evaluation in evaluations:
        printed.report_rows(evaluation, screen, only_common=options.only_common)
