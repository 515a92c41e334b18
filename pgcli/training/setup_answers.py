"""Makes the task of PaliGemma: rows that fit, a model of which a part is trained, and memory."""

from __future__ import annotations

import shutil
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from pgcli.checkpoints.config import read_config
from pgcli.checkpoints.find import Checkpoint
from pgcli.device.select import free_bytes
from pgcli.engine.loader import read_tokenizer
from pgcli.engine.tokenizer import Tokenizer
from pgcli.errors import NoInputError
from pgcli.model.config import PaliGemmaConfig
from pgcli.training.answer_task import AnswerObjective, AnswerTask, tokenized
from pgcli.training.feature_store import FeatureStore
from pgcli.training.memory_estimate import MemoryPlan, TrainingDtypes, estimate_memory, plan_memory
from pgcli.training.micro_batches import MicroBatches, saved_rows
from pgcli.training.rows import TrainingRows
from pgcli.training.sharding import shard
from pgcli.training.start_answers import base_dtype, check_kind, start_answers
from pgcli.training.task_inputs import TaskInputs
from pgcli.training.training_row import RowKey, TrainingRow

SHARE_OF_DISK = 0.5  # of the free space, for the features of images
MIN_USES = 2  # of an image, for its features to be stored


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
    memory: MemoryPlan
    feature_bytes: int

    def check_memory(self) -> None:
        """Raise NoUsableDevice if the run does not fit into free memory."""
        device = self.inputs.device
        self.memory.check(device, free_bytes(device), "; ".join(self._remedies()))

    def micro_batches(self) -> MicroBatches:
        """The rows at once; processes over which the model is divided compute equally many."""
        rows, processes = self.memory.micro_batch, self.inputs.processes
        is_fixed, saved_in = self.inputs.settings.micro_batch is not None, None
        if self.inputs.shards > 1:
            saved_in = self.inputs.reading.store.folder
            rows = processes.smallest(rows if is_fixed else saved_rows(saved_in, rows))
        return MicroBatches(rows, is_fixed, saved_in)

    def _remedies(self) -> list[str]:
        answer = self.inputs.settings.answer
        found = []
        if self.memory.micro_batch > 1:
            found.append("--micro-batch 1")
        if not self.memory.checkpointing:
            found.append("--gradient-checkpointing on")
        if answer.method == "full":
            found.append("--method lora trains small adapters beside frozen weights")
        elif answer.quantize == "none":
            found += ["--dtype bfloat16"] * (self.dtype == torch.float32) + ["--quantize int8"]
        return [*found, "a smaller model or another --device"]


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
    settings, checkpoint, device = inputs.settings, inputs.checkpoint, inputs.device
    assert checkpoint is not None
    check_kind(checkpoint)
    config = read_config(checkpoint.folder)
    tokenizer = read_tokenizer(checkpoint.folder, config)
    fitting = FittingRows(tokenizer, config)
    train, lengths = fitting.of(inputs.train)
    evaluation, _ = fitting.of(inputs.evaluation)
    inputs = replace(inputs, train=train, evaluation=evaluation, lengths=lengths)
    dtype = base_dtype(settings.answer, checkpoint, inputs.dtype, device)
    dtypes = TrainingDtypes.of(dtype, inputs.products_of(dtype))
    memory = plan_memory(
        estimate_memory(config, settings.answer, dtypes, max(lengths), shards=inputs.shards),
        settings.answer,
        batch=inputs.batch_size,
        slots=config.image_tokens + max(lengths),
        device=device,
        free=free_bytes(device),
        micro_batch=settings.micro_batch,
    )
    return AnswerPlan(
        inputs,
        checkpoint,
        config,
        tokenizer,
        dtype,
        fitting.faults,
        memory,
        feature_bytes(inputs, config, dtype),
    )


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

    Raises UsageError for a checkpoint of another kind, and NoUsableDevice for too little memory
    before the weights are read.
    """
    plan = plan_answers(inputs)
    plan.check_memory()
    inputs, settings = plan.inputs, plan.inputs.settings
    answer = settings.answer
    is_divided = inputs.shards > 1
    stores_features = inputs.processes.smallest(plan.feature_bytes) > 0
    start = start_answers(
        answer,
        plan.checkpoint,
        plan.config,
        dtype=plan.dtype,
        device=torch.device("cpu") if is_divided and not stores_features else inputs.device,
        seed=settings.seed,
    )
    if plan.memory.checkpointing:
        start.checkpoint_gradients()
    data = inputs.data(plan.config.vision.resolution, start.preprocessing)
    data.loader.errors.reasons.update(plan.faults)
    task = AnswerTask(
        model=start.model,
        data=data,
        input=inputs.image_input(start.preprocessing, inputs.products_of(plan.dtype)),
        micro_batches=plan.micro_batches(),
        save_to=start.save,
        tokenizer=plan.tokenizer,
        preprocessing=start.preprocessing,
        objective=AnswerObjective(answer.loss_mean, settings.label_smoothing, answer.keep_softcap),
    )
    if stores_features:
        features = FeatureStore(inputs.reading.store.folder, inputs.processes)
        task.fill_features(features, inputs.track)
    if is_divided:
        shard(start.model, inputs.device)
    return task
