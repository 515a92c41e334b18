"""train: learning from images and their answers, texts or labels."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from pgcli.boxes import split_locations
from pgcli.checkpoints.find import find
from pgcli.cli.options import CliCall, command
from pgcli.cli.ui.console import Screen
from pgcli.cli.ui.downloads import Downloads
from pgcli.parsing import SEPARATOR
from pgcli.text import count, listed
from pgcli.training.options import TRAIN_RECORDS, TrainOptions


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
        from pgcli.cli.run_command import RunOnScreen
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
    task, _, argument = prompt.partition(" ")
    match task:
        case "ocr" if not argument:
            details = ""
        case "detect" | "segment" if argument:
            names = map(str.strip, argument.split(SEPARATOR))
            details = "".join(f" --object {shlex.quote(name)}" for name in names)
        case "caption" if argument.isalpha():
            details = "" if argument == "en" else f" --lang {argument}"
        case _:
            task, details = "ask", f" --prompt {shlex.quote(prompt)}"
    return f"pgcli {task} photos {model}{details}"
