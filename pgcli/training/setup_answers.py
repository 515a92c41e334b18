"""Makes the task of PaliGemma: rows that fit, and a model of which a part is trained."""

from __future__ import annotations

import shutil
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from pgcli.checkpoints.config import read_config
from pgcli.checkpoints.find import Checkpoint
from pgcli.checkpoints.weight_files import total_bytes
from pgcli.engine.loader import read_tokenizer
from pgcli.engine.tokenizer import Tokenizer
from pgcli.errors import NoInputError
from pgcli.model.config import PaliGemmaConfig
from pgcli.stores.files import read_json
from pgcli.training.answer_task import AnswerTask, tokenized
from pgcli.training.rows import RowKey, TrainingRow, TrainingRows
from pgcli.training.sharding import shard
from pgcli.training.start_answers import base_dtype, check_kind, start_answers
from pgcli.training.task import MicroBatches
from pgcli.training.task_inputs import TaskInputs
from pgcli.training.trainer import SMALLER

SHARE_OF_DISK = 0.5  # of the free space, for the features of images
MIN_USES = 2  # of an image, for its features to be stored
#: Tokens computed at once: more are not faster.
CPU_TOKENS, GPU_TOKENS = 2048, 32_768
#: Larger checkpoints are trained on a CPU with activations that are computed twice: where its
#: memory runs out, the process ends.
LARGE_BYTES = 10**9


@dataclass(frozen=True)
class AnswerPlan:
    """What is known of a run before the weights are read.

    `inputs` have the rows that fit into the model; `faults` are the others. `feature_bytes` are
    those of the stored outputs of the vision tower, 0 if they are not stored.
    """

    inputs: TaskInputs
    checkpoint: Checkpoint
    config: PaliGemmaConfig
    tokenizer: Tokenizer
    dtype: torch.dtype
    faults: dict[RowKey, str]
    feature_bytes: int

    def micro_batches(self) -> MicroBatches:
        """The rows at once: as many as are fast. Processes of a divided model have equally many."""
        inputs, given = self.inputs, self.inputs.settings.micro_batch
        assert inputs.lengths is not None
        slots = self.config.image_tokens + max(inputs.lengths)
        tokens = CPU_TOKENS if inputs.device.type == "cpu" else GPU_TOKENS
        rows = given or max(1, tokens // slots)
        if inputs.shards > 1:
            saved = read_json(inputs.reading.store.folder / SMALLER) or {}
            rows = inputs.processes.smallest(rows if given else min(rows, saved.get("rows", rows)))
        return MicroBatches(rows, is_fixed=given is not None)

    @property
    def computes_twice(self) -> bool:
        """Whether activations are computed again in the backward pass from the first update on."""
        checkpointing = self.inputs.settings.answer.gradient_checkpointing
        if checkpointing != "auto":
            return checkpointing == "on"
        is_cpu = self.inputs.device.type == "cpu"
        return self.inputs.shards > 1 or (
            is_cpu and total_bytes(self.checkpoint.folder) > LARGE_BYTES
        )


@dataclass
class FittingRows:
    """Rows whose prompt and answer fit into the model's positions after the image.

    The others are named in `faults`: nothing is cut, least of all the tokens of an image.
    """

    tokenizer: Tokenizer
    config: PaliGemmaConfig
    faults: dict[RowKey, str] = field(default_factory=dict)

    def of(self, rows: Sequence[TrainingRow]) -> tuple[Sequence[TrainingRow], array[int]]:
        """The rows that fit, and how many text tokens each has."""
        kept, lengths = array("Q"), array("I")
        for number, row in enumerate(rows):
            if length := self._length(row):
                kept.append(number)
                lengths.append(length)
        if len(kept) == len(rows):
            return rows, lengths
        if not kept:
            raise NoInputError("no row's prompt and answer fit into the model", hint="shorten them")
        if isinstance(rows, TrainingRows):
            return rows.select(kept), lengths
        return [rows[number] for number in kept], lengths

    def _length(self, row: TrainingRow) -> int:
        """The number of text tokens of a row; 0 if they do not fit."""
        room = self.config.decoder.max_positions - self.config.image_tokens
        example = tokenized(row, self.tokenizer, self.config.stop_tokens[0])
        length = len(example.prefix) + len(example.suffix)
        if length > room:
            self.faults[(*row.image_id, row.prompt, row.target)] = (
                f"The prompt and the answer have {length:,} tokens; the model has room for "
                f"{room:,}."
            )
            return 0
        return length


def plan_answers(inputs: TaskInputs) -> AnswerPlan:
    """The plan of a run. Raises UsageError for a checkpoint of another kind."""
    settings, checkpoint = inputs.settings, inputs.checkpoint
    assert checkpoint is not None
    check_kind(checkpoint)
    config = read_config(checkpoint.folder)
    tokenizer = read_tokenizer(checkpoint.folder, config)
    fitting = FittingRows(tokenizer, config)
    train, lengths = fitting.of(inputs.train)
    evaluation, _ = fitting.of(inputs.evaluation)
    inputs = replace(inputs, train=train, evaluation=evaluation, lengths=lengths)
    dtype = base_dtype(settings.answer, checkpoint, inputs.dtype, inputs.device)
    stored = feature_bytes(inputs, config, dtype)
    return AnswerPlan(inputs, checkpoint, config, tokenizer, dtype, fitting.faults, stored)


def feature_bytes(inputs: TaskInputs, config: PaliGemmaConfig, dtype: torch.dtype) -> int:
    """The bytes of the vision tower's outputs of all images to train on; 0 if not worth storing.

    They are stored where the tower stays as it is and has no dropout, images are seen twice or
    more, and the disk has room.
    """
    settings, vision = inputs.settings, config.vision
    if settings.answer.trains_vision or vision.dropout or vision.attention_dropout:
        return 0
    images = inputs.count_images()
    steps = settings.trainer_options(inputs.steps_per_epoch, is_evaluated=False).steps
    if steps * inputs.batch_size < MIN_USES * images:
        return 0
    size = images * config.image_tokens * vision.width * dtype.itemsize
    free = shutil.disk_usage(inputs.reading.store.folder).free
    return size if size <= SHARE_OF_DISK * free else 0


def make_answer_task(inputs: TaskInputs) -> AnswerTask:
    """The task of the settings, with its model on the device.

    Raises UsageError for a checkpoint of another kind.
    """
    plan = plan_answers(inputs)
    inputs, settings = plan.inputs, plan.inputs.settings
    is_divided = inputs.shards > 1
    stores_features = inputs.processes.smallest(plan.feature_bytes) > 0
    start = start_answers(
        settings.answer,
        plan.checkpoint,
        plan.config,
        dtype=plan.dtype,
        device=torch.device("cpu") if is_divided and not stores_features else inputs.device,
        seed=settings.seed,
    )
    data = inputs.data(plan.config.vision.resolution, start.preprocessing)
    data.errors.reasons.update(plan.faults)
    micro_batches = plan.micro_batches()
    if plan.computes_twice:
        start.compute_twice()
    elif settings.answer.gradient_checkpointing == "auto":
        micro_batches.save_memory = start.compute_twice
    task = AnswerTask(
        model=start.model,
        data=data,
        preprocessing=start.preprocessing,
        device=inputs.device,
        dtype=inputs.products_of(plan.dtype),
        micro_batches=micro_batches,
        save_to=start.save,
        tokenizer=plan.tokenizer,
        label_smoothing=settings.label_smoothing,
    )
    if stores_features:
        task.fill_features(inputs.images(), task.encode, inputs.track)
    if is_divided:
        shard(start.model, inputs.device)
    return task
