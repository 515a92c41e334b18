"""train: learning from images and their answers, texts or labels."""

from __future__ import annotations

import typer

from pgcli.cli.option_records import with_options
from pgcli.cli.options import Sources
from pgcli.cli.options.training import (
    EvaluationOptions,
    LearningOptions,
    TrainingModelOptions,
    TrainingOutputOptions,
)
from pgcli.cli.options.training_input import TrainingInputOptions
from pgcli.cli.options.training_method import MethodOptions
from pgcli.cli.typer_app import command


@command(
    "train",
    "SOURCE is any source of the answering commands. A manifest has columns prefix or prompt, and "
    "suffix or answer; --task contrastive needs a column text, --task classify a column label, or "
    "a folder with a folder for each label.\n\n"
    "-o DIR is then an adapter, or with --method full and --task a model: DIR has the best weights "
    "by the evaluations, DIR/last the last ones; without evaluations, DIR has the last ones. The "
    "same command again resumes an interrupted run, and on one CPU the weights are the same bit "
    "for bit.",
    epilog="$ pgcli train rows.jsonl --model google/paligemma2-3b-pt-224 -o runs/lora\n"
    "$ pgcli train flowers --task classify --init tiny -o runs/flowers\n"
    "$ pgcli train pairs.jsonl --task contrastive --init small -o runs/towers",
)
@with_options
def train(
    *,
    sources: Sources,
    learning: LearningOptions,
    method: MethodOptions,
    evaluation: EvaluationOptions,
    model: TrainingModelOptions,
    input: TrainingInputOptions,
    output: TrainingOutputOptions,
) -> None:
    from pgcli.cli.training.run import run_training
    from pgcli.cli.training.train_command import TrainCommand

    given = TrainCommand(sources, learning, method, evaluation, model, input, output)
    raise typer.Exit(run_training(given))
