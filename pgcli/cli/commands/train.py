"""train: learning from images and their answers, texts or labels."""

from __future__ import annotations

from typing import Annotated

import typer

from pgcli.cli.options import Given, command
from pgcli.cli.training.options import RECORDS, TrainOptions


@command(
    "train",
    "SOURCE is any source of the answering commands. A manifest has columns prefix or prompt, and "
    "suffix or answer; --task contrastive needs a column text, --task classify a column label, or "
    "a folder with a folder for each label.\n\n"
    "-o DIR is then an adapter, or with --method full and --task a model: DIR has the best weights "
    "by the evaluations, DIR/last the last ones; without evaluations, DIR has the last ones. The "
    "same command again resumes an interrupted run, and on one CPU the weights are the same bit "
    "for bit.",
    *RECORDS,
    examples="$ pgcli train rows.jsonl --model google/paligemma2-3b-pt-224 -o runs/lora\n"
    "$ pgcli train flowers --task classify --init tiny -o runs/flowers\n"
    "$ pgcli train pairs.jsonl --task contrastive --init small -o runs/towers",
)
def train(
    sources: Annotated[list[str], typer.Argument(metavar="SOURCE", hidden=True)], given: Given
) -> None:
    from pgcli.cli.training.run import run_training

    raise typer.Exit(run_training(TrainOptions.of(sources, given.values, given.typed)))
