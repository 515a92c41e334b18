"""The task of a run, and what is said of it before it begins."""

from __future__ import annotations

from collections.abc import Collection

from pgcli.pipeline.progress.events import Facts
from pgcli.training.answers.start import AnswerPlan, make_answer_task
from pgcli.training.answers.task import AnswerTask
from pgcli.training.encoders.classify_task import ClassifyTask
from pgcli.training.encoders.contrastive_task import ContrastiveTask
from pgcli.training.encoders.start import make_classify_task, make_contrastive_task
from pgcli.training.task import TaskInputs
from pgcli.wording import count


def make_task(inputs: TaskInputs) -> AnswerTask | ContrastiveTask | ClassifyTask:
    """The task of the options, with its model on the device.

    Raises UsageError for a checkpoint or labels that do not fit the task, and for fewer rows in a
    batch than processes.
    """
    match inputs.options.task:
        case "contrastive":
            return make_contrastive_task(inputs)
        case "classify":
            return make_classify_task(inputs)
        case None:
            return make_answer_task(inputs)


def training_facts(inputs: TaskInputs, unreadable: Collection[str]) -> Facts:
    """What is trained on which rows, and how; with PaliGemma on this machine, what is computed.

    `unreadable` are the keys of images that cannot be read.
    """
    options, plan = inputs.options, None
    if options.task is None and inputs.checkpoint is not None:
        plan = AnswerPlan.of(inputs)
        inputs = plan.inputs
    order = inputs.order
    steps = options.trainer_options(order.steps_per_epoch, is_evaluated=bool(inputs.evaluation))
    train, evaluation = (
        sum(row.image_key not in unreadable for row in rows)
        for rows in (inputs.train, inputs.evaluation)
    )
    total = len(inputs.train) + len(inputs.evaluation)
    lost = f"; {total - train - evaluation:,} have unreadable images" * (train + evaluation < total)
    facts = [
        ("task", options.task or f"answer, --method {options.method}"),
        ("model", options.model or f"new, {options.init}"),
        ("rows", f"{train:,} to train on, {evaluation:,} to evaluate on{lost}"),
        ("steps", f"{steps.steps:,}, {order.steps_per_epoch:,} in an epoch"),
        ("batch", f"{order.batch_size:,} rows"),
        ("learning rate", f"{steps.learning_rate:g}, warm-up steps: {steps.warmup:,}"),
        ("weight decay", f"{steps.weight_decay:g}"),
        ("evaluation", f"every {steps.eval_every:,} steps" if steps.eval_every else "none"),
    ]
    if plan is None:
        return facts
    facts += [
        ("computed at once", f"{count(plan.micro_batches().rows or 0, 'row')}, or fewer"),
        ("activations", "computed twice" if plan.computes_twice else "held"),
    ]
    if plan.faults:
        facts.append(("left out", f"{count(len(plan.faults), 'row')} longer than the model's text"))
    return facts
