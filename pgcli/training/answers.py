"""Prepares the training of PaliGemma: rows that fit, weights and adapters."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from pgcli.checkpoints import weights
from pgcli.checkpoints.adapters import fingerprint_of, warn_of_another_base
from pgcli.checkpoints.config import read_config
from pgcli.checkpoints.files import total_bytes
from pgcli.checkpoints.find import Checkpoint
from pgcli.checkpoints.model_description import read_description
from pgcli.checkpoints.preprocessing import read_preprocessing
from pgcli.checkpoints.save import save_checkpoint
from pgcli.device.select import choose_dtype, free_bytes
from pgcli.engine.loader import read_tokenizer
from pgcli.engine.tokenizer import Tokenizer
from pgcli.errors import NoInputError, NoUsableDevice, UsageError
from pgcli.model.config import PaliGemmaConfig
from pgcli.model.cpu.processor import has_bfloat16
from pgcli.model.gemma import GemmaDecoderLayer
from pgcli.model.paligemma import PaliGemma
from pgcli.model.quantized.frozen import freeze_in_int8
from pgcli.text import byte_count
from pgcli.training.answer_task import AnswerTask, tokenized
from pgcli.training.lora import add_lora, load_adapter, lora_settings, save_adapter
from pgcli.training.options import TrainOptions
from pgcli.training.rows import RowKey, TrainingRow, TrainingRows
from pgcli.training.task import MicroBatches, TaskInputs

#: Tokens per micro-batch; more are not faster.
CPU_TOKENS, GPU_TOKENS = 2048, 32_768
#: Memory of a weight: in float32, with its gradient and two moments, or alone.
TRAINED_BYTES, FROZEN_BYTES = 16, 4
#: On a CPU, larger checkpoints recompute activations from the start: the system kills a process
#: that runs out of memory.
LARGE_BYTES = 10**9


def fitting_rows(
    rows: TrainingRows, tokenizer: Tokenizer, config: PaliGemmaConfig, faults: dict[RowKey, str]
) -> tuple[TrainingRows, array[int]]:
    """The rows that fit into the model after the image, and the lengths of their texts.

    Longer rows are not truncated; `faults` gets the reason. Raises NoInputError if no row fits.
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
            f"Prompt and answer have {length:,} tokens; the model takes at most {room:,}."
        )
    if rows and not kept:
        raise NoInputError("no row's prompt and answer fit into the model", hint="shorten them")
    return rows.select(kept), lengths


def make_answer_task(inputs: TaskInputs) -> AnswerTask:
    """The task of PaliGemma. Raises UsageError for a checkpoint of another kind."""
    options, checkpoint = inputs.options, inputs.checkpoint
    assert checkpoint is not None
    folder = checkpoint.folder
    if read_description(folder).kind != "paligemma":
        raise UsageError(
            f"{checkpoint.name} is not a PaliGemma, which train needs without <--task=>",
            hint="name a PaliGemma; <--task contrastive> trains two towers, <--task classify> "
            "a classifier",
        )
    config = read_config(folder)
    tokenizer = read_tokenizer(folder, config)
    faults: dict[RowKey, str] = {}
    train, lengths = fitting_rows(inputs.train, tokenizer, config, faults)
    evaluation, _ = fitting_rows(inputs.evaluation, tokenizer, config, faults)
    inputs = replace(inputs, train=train, evaluation=evaluation, lengths=lengths)
    device, is_large = inputs.device, total_bytes(folder) > LARGE_BYTES
    model, dtype, save = load_learner(inputs, checkpoint, config)
    tokens = CPU_TOKENS if device.type == "cpu" else GPU_TOKENS
    fastest = max(1, tokens // (config.image_tokens + max(lengths)))
    fixed = options.micro_batch
    micro_batches = MicroBatches(fixed or fastest, is_fixed=fixed is not None)
    if device.type == "cpu" and is_large:
        recompute_activations(model)
    else:
        micro_batches.save_memory = partial(recompute_activations, model)
    preprocessing = read_preprocessing(folder, config.vision.resolution)
    task = AnswerTask(
        **inputs.fields(model, preprocessing, save, micro_batches, dtype), tokenizer=tokenizer
    )
    task.data.errors.reasons.update(faults)
    return task


def load_learner(
    inputs: TaskInputs, checkpoint: Checkpoint, config: PaliGemmaConfig
) -> tuple[PaliGemma, torch.dtype, Callable[[Path], None]]:
    """The model whose weights or adapters are trained, its dtype, and the function that saves it.

    Raises NoUsableDevice if full training does not fit the device.
    """
    options, device, folder = inputs.options, inputs.device, checkpoint.folder
    if options.method == "full":
        check_fits_device(options, device, checkpoint, config)
        model = weights.load_paligemma(folder, config, dtype=torch.float32, device=device)
        unfreeze(model, options.freeze)
        for layer in model.decoder.layers:
            assert isinstance(layer, GemmaDecoderLayer)
            layer.dropout = options.dropout
        save = partial(save_checkpoint, model, source=folder, dtype=torch.float32)
        return model, torch.float32, save
    # the dtype of inference, unless the processor only stores it
    is_slow = device.type == "cpu" and not has_bfloat16()
    dtype = choose_dtype(options.dtype, device, 0 if is_slow else total_bytes(folder))
    finish = freeze_in_int8 if options.quantize == "int8" else None
    model = weights.load_paligemma(folder, config, dtype=dtype, device=device, finish=finish)
    settings = lora_settings(options)
    add_lora(model, settings, options.seed)
    if options.adapter is not None:
        adapter = Checkpoint(options.adapter, Path(options.adapter))
        warn_of_another_base(adapter, checkpoint)
        load_adapter(model, adapter.folder)
    save = partial(
        save_adapter,
        model,
        settings,
        base_model=checkpoint.name,
        revision=checkpoint.revision,
        fingerprint=fingerprint_of(folder),
    )
    return model, dtype, save


def unfreeze(model: PaliGemma, frozen: Sequence[str]) -> None:
    """Train all weights of the model but those of the frozen parts."""
    model.requires_grad_(requires_grad=True)
    for name in frozen:
        model.get_submodule(name).requires_grad_(requires_grad=False)


def check_fits_device(
    options: TrainOptions, device: torch.device, checkpoint: Checkpoint, config: PaliGemmaConfig
) -> None:
    """Raise NoUsableDevice if full training does not fit the device, before the weights load."""
    model = weights.meta_model(config)
    unfreeze(model, options.freeze)
    needed = sum(
        weight.numel() * (TRAINED_BYTES if weight.requires_grad else FROZEN_BYTES)
        for weight in model.parameters()
    )
    free = free_bytes(device)
    if needed > free:
        raise NoUsableDevice(
            f"full training of {checkpoint.name} needs {byte_count(needed)} of memory and "
            f"more for the images, and {device} has {byte_count(free)}: the weights, their "
            "gradients and moments must fit on each device",
            hint="<--method lora> trains an adapter; <--freeze vision,projector> trains fewer "
            "weights",
        )


def recompute_activations(model: PaliGemma) -> bool:
    """Recompute activations in the backward pass; return whether that was off before."""
    is_new = not model.decoder.gradient_checkpointing
    model.decoder.gradient_checkpointing = True
    trains_vision = any(weight.requires_grad for weight in model.vision.parameters())
    model.vision.gradient_checkpointing = trains_vision
    return is_new
