"""`train --dry-run`: the plan of a run."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from rich.filesize import decimal

from pgcli.checkpoints.find import find_local
from pgcli.cli.training.inputs import read_run_rows, task_inputs
from pgcli.cli.training.options import TrainOptions
from pgcli.cli.training.run_record import check_run, run_record
from pgcli.cli.ui.console import Facts, Screen

if TYPE_CHECKING:
    from pgcli.training.processes import Processes
    from pgcli.training.rows import RowStore
    from pgcli.training.setup_answers import AnswerPlan
    from pgcli.training.task_inputs import TaskInputs


def dry_run(command: TrainOptions, screen: Screen, processes: Processes) -> int:
    """Read the rows and print the plan of a run of so many processes. Writes nothing.

    Raises OutputExists if the folder has another run.
    """
    import tempfile

    from pgcli.training.rows import RowStore

    with tempfile.TemporaryDirectory() as folder, closing(RowStore(Path(folder))) as store:
        inputs, plan = plan_run(command, store, screen, processes)
    screen.table(plan_facts(inputs))
    if command.settings.task == "answer":
        screen.table(answer_facts(plan))
    screen.table([("output", str(command.folder))])
    return 0


def plan_run(
    command: TrainOptions, store: RowStore, screen: Screen, processes: Processes
) -> tuple[TaskInputs, AnswerPlan | None]:
    """The inputs of a run, and its plan if it trains PaliGemma that is on this machine."""
    from pgcli.training.setup_answers import plan_answers

    rows, name = read_run_rows(command, store, screen), command.model
    checkpoint = None if name is None else find_local(name, command.revision)
    record = run_record(command, rows, checkpoint)
    if checkpoint is None and name is not None:
        del record["settings"]["checkpoint"]  # unknown before it is on this machine
    check_run(command, record)
    inputs = task_inputs(command, rows, store, checkpoint, processes)
    if command.settings.task != "answer" or checkpoint is None:
        return inputs, None
    plan = plan_answers(inputs)
    return plan.inputs, plan


def plan_facts(inputs: TaskInputs) -> Facts:
    """What is trained on which rows, and how."""
    settings, per_epoch = inputs.settings, inputs.steps_per_epoch
    options = settings.trainer_options(per_epoch, is_evaluated=bool(inputs.evaluation))
    every = options.eval_every
    answer = f"answer, --method {settings.answer.method}"
    return [
        ("task", answer if settings.task == "answer" else settings.task),
        ("model", settings.model or f"new, {settings.init}"),
        ("rows", f"{len(inputs.train):,} to train on, {len(inputs.evaluation):,} to evaluate on"),
        ("steps", f"{options.steps:,}, {per_epoch:,} in an epoch"),
        ("batch", f"{inputs.batch_size:,} rows"),
        ("learning rate", f"{options.learning_rate:g}, warm-up steps: {options.warmup:,}"),
        ("weight decay", f"{options.weight_decay:g}"),
        ("evaluation", f"every {every:,} steps" if every else "none"),
    ]


def answer_facts(plan: AnswerPlan | None) -> Facts:
    """What is known of a run once its model is on this machine."""
    if plan is None:
        return [("memory", "unknown before the model is on this machine")]
    rows = plan.micro_batches().rows
    stored = f"computed once, {decimal(plan.feature_bytes)}"
    facts = [
        ("computed at once", f"{rows} row{'s' * (rows != 1)}, or fewer if memory runs out"),
        ("activations", "computed twice" if plan.computes_twice else "held"),
        ("image features", stored if plan.feature_bytes else "computed with each row"),
    ]
    if lost := len(plan.faults):
        facts.append(("left out", f"{lost:,} row{'s' * (lost != 1)} longer than the model's text"))
    return facts
