"""pgcli detect: boxes around objects in each image."""

from __future__ import annotations

from typing import Annotated

from pgcli import tasks
from pgcli.box_filter import BoxFilter
from pgcli.cli.job.command import SOURCES, Objects, run_and_exit
from pgcli.cli.option_records import with_options
from pgcli.cli.options import MinConfidence, MinScore, Nms, Options, Sources, option
from pgcli.cli.typer_app import command


@command(
    "detect",
    SOURCES,
    epilog="$ pgcli detect photo.jpg --object cat --draw drawn\n"
    '$ pgcli detect photos --object cat --object "red car" -o boxes.jsonl',
)
@with_options
def detect(
    sources: Sources,
    options: Options,
    object: Objects,
    strict: Annotated[
        bool,
        option("Answering", "--strict", help="Allow only complete boxes around these objects."),
    ] = False,
    each: Annotated[
        bool,
        option(
            "Answering",
            "--each",
            help="Ask for one object in each prompt: a row for each image and object. Small models "
            "find more so.",
        ),
    ] = False,
    min_score: MinScore = None,
    min_confidence: MinConfidence = None,
    nms: Nms = None,
) -> None:
    question = tasks.detect(
        object,
        strict=strict,
        each=each,
        box_filter=BoxFilter(min_score, min_confidence, nms),
        max_new_tokens=options.answering.max_new_tokens,
    )
    run_and_exit(sources, question, options)
