"""Makes the task of a run: rows that fit, a model of which a part is trained, and what is computed.

B rows
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch

from pgcli.checkpoints.config import read_config
from pgcli.checkpoints.find import Checkpoint
from pgcli.checkpoints.preprocessing import Preprocessing
from pgcli.checkpoints.weight_files import total_bytes
from pgcli.device.select import choose_device, choose_dtype
from pgcli.engine.loader import read_tokenizer
from pgcli.engine.tokenizer import Tokenizer
from pgcli.errors import NoInputError, UsageError
from pgcli.images import ImageDecoder
from pgcli.model.config import PaliGemmaConfig
from pgcli.run.progress.events import Facts, OnEvent, ignore, tracked
from pgcli.training.answers.start import base_dtype, check_kind, compute_twice, start_answers
from pgcli.training.answers.task import AnswerTask, tokenized
from pgcli.training.data import RowOrder, TrainingData
from pgcli.training.encoders.classify_task import ClassifyTask
from pgcli.training.encoders.contrastive_task import ContrastiveTask
from pgcli.training.encoders.start import (
    chosen_loss,
    freeze_towers,
    start_classifier,
    start_towers,
)
from pgcli.training.options import TrainOptions
from pgcli.training.processes import ALONE, Processes
from pgcli.training.rows import RowErrors, RowKey, TrainingRow, TrainingRows
from pgcli.training.sharding import shard
from pgcli.training.task import MicroBatches
from pgcli.wording import count

#: Tokens computed at once: more are not faster.
CPU_TOKENS, GPU_TOKENS = 2048, 32_768
#: Larger checkpoints are trained on a CPU with activations that are computed twice: where its
#: memory runs out, the process ends.
LARGE_BYTES = 10**9


@dataclass(frozen=True)
class TaskInputs:
    """What a run's task is made of: options, rows and a checkpoint.

    `faults` are rows that were lost before their images are read. `on_event` is told how far the
    computing of features is. With `lengths`, rows of about the same length are computed together.
    """

    options: TrainOptions
    train: TrainingRows
    evaluation: TrainingRows
    checkpoint: Checkpoint | None
    faults: int = 0
    on_event: OnEvent = ignore
    processes: Processes = ALONE
    lengths: Sequence[int] | None = None

    @cached_property
    def device(self) -> torch.device:
        """The device of the options. Raises NoUsableDevice."""
        return choose_device(self.options.device)

    @property
    def order(self) -> RowOrder:
        """Which rows each update has. Raises UsageError if these are fewer than processes."""
        size = min(self.options.recipe.batch_size, len(self.train))
        if size < self.processes.count:
            raise UsageError(
                f"updates of {count(size, 'row')} cannot be divided over "
                f"{self.processes.count} processes",
                hint="--batch-size with a larger number, more rows or fewer processes",
            )
        return RowOrder(len(self.train), size, self.options.seed, self.lengths)

    def data(self, resolution: int, preprocessing: Preprocessing) -> TrainingData:
        """The rows in order, with their images for a model."""
        options = self.options
        spec = replace(preprocessing.image_spec(resolution), fast_decode=options.fast_decode)
        return TrainingData(
            self.train,
            self.evaluation,
            self.order,
            self.train.store,
            ImageDecoder(spec, options.image_limits),
            RowErrors(options.error_budget, len(self.train) + self.faults, self.faults),
            options.workers,
            options.make_reader,
            self.processes,
        )

    @property
    def shards(self) -> int:
        """The processes over which the weights are divided: those of PaliGemma that are trained."""
        is_full = self.options.task is None and self.options.method == "full"
        return self.processes.count if is_full else 1

    def products_of(self, weights: torch.dtype) -> torch.dtype:
        """The dtype to which autocast converts weights for products; float32 if it does not.

        Of float32 weights it is bfloat16 on GPUs that have it, on CPUs only if asked for. Weights
        that are trained, gradients and the optimizer's moments are always in float32.
        """
        if weights != torch.float32:
            return torch.float32
        return choose_dtype(self.options.dtype, self.device, checkpoint_bytes=0)


@dataclass(frozen=True)
class AnswerPlan:
    """What is known of a run before the weights are read.

    `inputs` have the rows that fit into the model; `faults` are the others.
    """

    inputs: TaskInputs
    checkpoint: Checkpoint
    config: PaliGemmaConfig
    tokenizer: Tokenizer
    dtype: torch.dtype
    faults: dict[RowKey, str]

    def micro_batches(self) -> MicroBatches:
        """The rows at once: as many as are fast. Processes of a divided model have equally many."""
        inputs, fixed = self.inputs, self.inputs.options.micro_batch
        assert inputs.lengths is not None
        slots = self.config.image_tokens + max(inputs.lengths)
        tokens = CPU_TOKENS if inputs.device.type == "cpu" else GPU_TOKENS
        rows = fixed or max(1, tokens // slots)
        if inputs.shards > 1:
            rows = inputs.processes.smallest(rows)
        return MicroBatches(rows, is_fixed=fixed is not None)

    @property
    def computes_twice(self) -> bool:
        """Whether activations are computed again in the backward pass from the first update on."""
        checkpointing = self.inputs.options.gradient_checkpointing
        if checkpointing != "auto":
            return checkpointing == "on"
        is_cpu = self.inputs.device.type == "cpu"
        return self.inputs.shards > 1 or (
            is_cpu and total_bytes(self.checkpoint.folder) > LARGE_BYTES
        )


def fitting_rows(
    rows: TrainingRows, tokenizer: Tokenizer, config: PaliGemmaConfig, faults: dict[RowKey, str]
) -> tuple[TrainingRows, array[int]]:
    """The rows whose prompt and answer fit into the model after the image, and their text tokens.

    The others are named in `faults`: nothing is cut, least of all the tokens of an image. Raises
    NoInputError if no row is left.
    """
    room = config.decoder.max_positions - config.image_tokens
    kept: list[TrainingRow] = []
    lengths = array("I")
    for row in rows:
        prefix, suffix = tokenized(row, tokenizer, config.stop_tokens[0])
        length = len(prefix) + len(suffix)
        if length <= room:
            kept.append(row)
            lengths.append(length)
            continue
        faults[(*row.image_id, row.prompt, row.target)] = (
            f"The prompt and the answer have {length:,} tokens; the model has room for {room:,}."
        )
    if len(kept) == len(rows):
        return rows, lengths
    if not kept:
        raise NoInputError("no row's prompt and answer fit into the model", hint="shorten them")
    return rows.select(kept), lengths


def plan_answers(inputs: TaskInputs) -> AnswerPlan:
    """The plan of a run. Raises UsageError for a checkpoint of another kind."""
    options, checkpoint = inputs.options, inputs.checkpoint
    assert checkpoint is not None
    check_kind(checkpoint)
    config = read_config(checkpoint.folder)
    tokenizer = read_tokenizer(checkpoint.folder, config)
    faults: dict[RowKey, str] = {}
    train, lengths = fitting_rows(inputs.train, tokenizer, config, faults)
    evaluation, _ = fitting_rows(inputs.evaluation, tokenizer, config, faults)
    inputs = replace(inputs, train=train, evaluation=evaluation, lengths=lengths)
    dtype = base_dtype(options, checkpoint, inputs.device)
    return AnswerPlan(inputs, checkpoint, config, tokenizer, dtype, faults)


def make_answer_task(inputs: TaskInputs) -> AnswerTask:
    """The task of the settings, with its model on the device.

    Raises UsageError for a checkpoint of another kind.
    """
    plan = plan_answers(inputs)
    inputs, options = plan.inputs, plan.inputs.options
    is_divided = inputs.shards > 1
    start = start_answers(
        options,
        plan.checkpoint,
        plan.config,
        dtype=plan.dtype,
        device=torch.device("cpu") if is_divided else inputs.device,
    )
    data = inputs.data(plan.config.vision.resolution, start.preprocessing)
    data.errors.reasons.update(plan.faults)
    micro_batches = plan.micro_batches()
    if plan.computes_twice:
        compute_twice(start.model)
    elif options.gradient_checkpointing == "auto":
        micro_batches.save_memory = partial(compute_twice, start.model)
    task = AnswerTask(
        model=start.model,
        data=data,
        preprocessing=start.preprocessing,
        device=inputs.device,
        dtype=inputs.products_of(plan.dtype),
        micro_batches=micro_batches,
        save_to=start.save,
        tokenizer=plan.tokenizer,
        label_smoothing=options.label_smoothing,
    )
    if is_divided:
        shard(start.model, inputs.device)
    return task


def make_task(inputs: TaskInputs) -> AnswerTask | ContrastiveTask | ClassifyTask:
    """The task of the options, with its model on the device.

    Raises UsageError for a checkpoint or labels that do not fit the task, and for fewer rows in a
    batch than processes.
    """
    options = inputs.options
    if options.task is None:
        return make_answer_task(inputs)
    is_contrastive = options.task == "contrastive"
    start = (start_towers if is_contrastive else start_classifier)(
        options, inputs.checkpoint, inputs.device, inputs.train, inputs.evaluation
    )
    # a process that repeats its part of a contrastive update would exchange vectors alone
    exchanges = inputs.processes.count > 1 and is_contrastive
    shared: dict[str, Any] = {
        "model": start.model,
        "data": inputs.data(start.model.config.vision.resolution, start.preprocessing),
        "preprocessing": start.preprocessing,
        "device": inputs.device,
        "dtype": inputs.products_of(torch.float32),
        "micro_batches": MicroBatches(
            options.micro_batch, is_fixed=bool(options.micro_batch) or exchanges
        ),
        "save_to": start.save,
    }
    if is_contrastive:
        assert start.texts is not None
        loss = chosen_loss(options, start.model)
        start.model.config = replace(start.model.config, has_sigmoid=loss == "sigmoid")
        if options.probe:
            freeze_towers(start.model)
        return ContrastiveTask(**shared, texts=start.texts, loss_name=loss)
    task = ClassifyTask(**shared, label_smoothing=options.label_smoothing)
    if options.probe:
        start.model.vision.requires_grad_(requires_grad=False)
        task.fill_features(
            partial(tracked, on_event=inputs.on_event, task="computing features", unit="batches")
        )
    return task


def plan_facts(inputs: TaskInputs) -> Facts:
    """What is trained on which rows, and how; with PaliGemma on this machine, what is computed."""
    options, plan = inputs.options, None
    if options.task is None and inputs.checkpoint is not None:
        plan = plan_answers(inputs)
        inputs = plan.inputs
    order = inputs.order
    steps = options.trainer_options(order.steps_per_epoch, is_evaluated=bool(inputs.evaluation))
    facts = [
        ("task", options.task or f"answer, --method {options.method}"),
        ("model", options.model or f"new, {options.init}"),
        ("rows", f"{len(inputs.train):,} to train on, {len(inputs.evaluation):,} to evaluate on"),
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
