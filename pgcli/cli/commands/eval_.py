"""eval: answers compared with the truth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from pgcli.cli.options import number_option, option
from pgcli.cli.shared_options import AllowPrivateHosts, AllowUrls, Json, Quiet, images_option
from pgcli.cli.typer_app import command
from pgcli.cli.ui.console import Screen
from pgcli.errors import UsageError

if TYPE_CHECKING:
    from pgcli.evaluation.evaluate import FileMeasures
    from pgcli.evaluation.measures import Estimate

METRICS = (
    *("auto", "exact", "vqa", "anls", "relaxed", "cider"),
    *("ap", "acc@0.5", "miou", "accuracy", "retrieval"),
)
WORST_ROWS = 300


@command(
    "eval",
    "Rows are joined with those of --truth by id and prompt. Each metric has a 95 % interval from "
    "resampling images. Rows that are missing, and rows without a truth, count as wrong. Two "
    "result files also have their differences, with intervals of paired resampling.",
    epilog="$ pgcli eval captions.jsonl --truth truth.csv\n"
    "$ pgcli eval captions.jsonl again.jsonl --truth truth.csv --json",
)
def eval_(
    context: typer.Context,
    results: Annotated[list[str], typer.Argument(metavar="RESULTS", hidden=True)],
    truth: Annotated[
        str,
        option(
            "Input",
            "--truth",
            metavar="FILE",
            own=True,
            help="A manifest or a result file with answers or boxes: .jsonl, .csv, .tsv, .parquet, "
            "or a .json file of COCO or VQA; a path, or an address with --allow-urls.",
        ),
    ],
    metric: Annotated[
        str,
        option(
            "Metrics",
            "--metric",
            metavar=f"[{'|'.join(METRICS)}]",
            choices=METRICS,
            own=True,
            help="auto chooses by the task of the rows and what the truth says.",
        ),
    ] = "auto",
    by: Annotated[
        str | None,
        option(
            "Metrics",
            "--by",
            metavar="COLUMN",
            own=True,
            help="Also for the rows with each value of this column of the rows or the truth.",
        ),
    ] = None,
    only_common: Annotated[
        bool,
        option(
            "Metrics",
            "--only-common",
            own=True,
            help="Leave out missing rows and those without a truth; they are counted only.",
        ),
    ] = False,
    id_column: Annotated[
        str,
        option("Input", "--id-column", metavar="NAME", own=True, help="The truth's column of ids."),
    ] = "id",
    prompt_column: Annotated[
        str | None,
        option(
            "Input",
            "--prompt-column",
            metavar="NAME",
            own=True,
            default="prompt or prefix",
            help="The truth's column of prompts; '' joins rows by id alone.",
        ),
    ] = None,
    answer_column: Annotated[
        str | None,
        option(
            "Input",
            "--answer-column",
            metavar="NAME",
            own=True,
            default="answers, answer, suffix, label, caption or text",
            help="The truth's column of answers.",
        ),
    ] = None,
    texts: Annotated[
        str | None,
        option(
            "Input",
            "--texts",
            metavar="FILE",
            own=True,
            help="retrieval: the embeddings of the texts, from pgcli embed --texts-file.",
        ),
    ] = None,
    view: Annotated[
        str | None,
        option(
            "Output",
            "--view",
            metavar="FILE",
            own=True,
            help="A page with the metrics, the worst rows beside the truth, and the calibration of "
            "boxes.",
        ),
    ] = None,
    limit: Annotated[
        int,
        number_option("Output", "--limit", least=1, own=True, help="The number of worst rows."),
    ] = WORST_ROWS,
    overwrite: Annotated[
        bool, option("Output", "--overwrite", own=True, help="Replace a file that is not a page.")
    ] = False,
    images: Annotated[
        str | None, images_option("Search the images of the page in this folder only.")
    ] = None,
    allow_urls: AllowUrls = False,
    allow_private_hosts: AllowPrivateHosts = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    from pgcli.cli.run_command import RunOnScreen
    from pgcli.cli.ui import evaluation_report as printed
    from pgcli.evaluation import evaluate as work
    from pgcli.evaluation import joined_file
    from pgcli.evaluation.join import join
    from pgcli.evaluation.truth.read_truth import read_truth
    from pgcli.evaluation.truth.truths import TruthColumns
    from pgcli.evaluation.worst_rows import write_worst_rows
    from pgcli.results.gallery.gallery_page import GalleryOptions
    from pgcli.run.checks import check_not_a_source
    from pgcli.stores import make_reader

    screen = Screen(quiet=quiet)
    check_options(results, metric)
    check_page_options(context, view)
    if view is not None:
        read = filter(None, (*results, truth, texts))
        check_not_a_source(view, read, "--view")
    with screen.status("reading rows"):
        urls = make_reader(allow_urls=allow_urls, allow_private_hosts=allow_private_hosts)
        truths = read_truth(truth, TruthColumns(id_column, prompt_column, answer_column), urls)
        joined = [join(name, truths) for name in results]
    if only_common:
        joined = joined_file.only_common(joined)
    with screen.status("computing metrics"):
        files = [work.measure_file(one, metric, texts, truth) for one in joined]
        check_texts(texts, files)
        found = [work.evaluate(file) for file in files]
        if by is not None:
            for file, one in zip(files, found, strict=True):
                one.groups.update(work.evaluate_groups(file, by))
        differences: dict[str, Estimate] = {}
        if len(files) == 2:
            pairs = [
                work.measure_file(one, metric, texts, truth) for one in joined_file.paired(*joined)
            ]
            differences = work.compare(*pairs)
    if view is not None:
        options = GalleryOptions(
            output=view,
            option="--view",
            images=images,
            limit=limit,
            overwrite=overwrite,
            allow_urls=allow_urls,
            allow_private_hosts=allow_private_hosts,
        )
        write_worst_rows(files, found, differences, options, RunOnScreen(screen))
    if json:
        printed.print_as_json(results, found, differences)
    else:
        printed.print_as_text(files, found, differences, by)
    printed.report(files, screen, only_common=only_common)


def check_options(results: Sequence[str], metric: str) -> None:
    """Raise UsageError for options that are wrong."""
    if metric not in METRICS:
        raise UsageError(f"{metric} is not a metric", hint=f"--metric takes {', '.join(METRICS)}")
    if len(results) > 2:
        raise UsageError(
            f"{len(results)} result files are given", hint="name one, or two to compare"
        )


def check_page_options(context: typer.Context, view: str | None) -> None:
    """Raise UsageError for an option of the page without a page; defaults of a file are allowed."""
    for name in ("limit", "images", "overwrite"):
        source = context.get_parameter_source(name)
        if view is None and source is not None and source.name == "COMMANDLINE":
            raise UsageError(
                f"--{name} has no effect without --view", hint="--view FILE writes a page"
            )


def check_texts(texts: str | None, files: Sequence[FileMeasures]) -> None:
    """Raise UsageError for embeddings of texts where no rows are compared with them."""
    from pgcli.evaluation.choose_metrics import has_column

    if texts is None:
        return
    metrics = {choice.metric for file in files for choice, _ in file.by_choice}
    if "retrieval" not in metrics:
        measured = ", ".join(sorted(metrics))
    elif all(has_column(file.joined.rows, "scores") for file in files):
        measured = "rows that have scores"
    else:
        return
    raise UsageError(
        f"--texts has no effect on {measured}",
        hint="leave it out, or measure rows of embed with --metric retrieval",
    )
