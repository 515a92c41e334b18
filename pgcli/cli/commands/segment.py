"""pgcli segment: boxes around objects in each image, and their masks."""

from __future__ import annotations

from typing import Annotated

from pgcli import tasks
from pgcli.box_filter import BoxFilter
from pgcli.cli.job.command import SOURCES, Objects, run_and_exit
from pgcli.cli.option_records import with_options
from pgcli.cli.options import MinConfidence, MinScore, Nms, Options, Sources, option
from pgcli.cli.typer_app import command


@command(
    "segment",
    SOURCES,
    epilog="$ pgcli segment photo.jpg --object cat --draw drawn\n"
    "$ pgcli segment photos --object cat --mask-decoder vae-oid.npz -o masks.jsonl",
)
@with_options
def segment(
    sources: Sources,
    options: Options,
    object: Objects,
    mask_decoder: Annotated[
        str | None,
        option(
            "Model",
            "--mask-decoder",
            metavar="FILE",
            help="Weights that turn mask codes into pixels: big_vision's vae-oid.npz. "
            "By default the model's own, where it brings mask_decoder.safetensors.",
        ),
    ] = None,
    min_score: MinScore = None,
    min_confidence: MinConfidence = None,
    nms: Nms = None,
) -> None:
    question = tasks.segment(
        object,
        box_filter=BoxFilter(min_score, min_confidence, nms),
        max_new_tokens=options.answering.max_new_tokens,
    )
    run_and_exit(sources, question, options, mask_decoder=mask_decoder)
