"""Load a checkpoint's files into an engine."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch

from pgcli.checkpoints import adapters, mask_decoder, weights
from pgcli.checkpoints.adapters import warn_of_another_base
from pgcli.checkpoints.config import image_preprocessing, read_config, read_description
from pgcli.checkpoints.files import total_bytes
from pgcli.checkpoints.find import Checkpoint, own_mask_decoder
from pgcli.device.select import choose_device, choose_dtype, free_bytes
from pgcli.engine.engine import InferenceEngine
from pgcli.engine.memory import (
    NEW_TOKENS,
    SMALLER_MODEL,
    MemoryBudget,
    check_weights_fit,
    memory_named,
    weight_bytes,
)
from pgcli.engine.tokenizer import Tokenizer
from pgcli.errors import InvalidCheckpoint, NoUsableDevice, UsageError
from pgcli.model.config import DecoderConfig, PaliGemmaConfig
from pgcli.model.optimize import float16_problem, optimize_part
from pgcli.model.quantized import quantization_problem

QUANTIZATIONS = ("none", "int8", "fp8")
#: The tokens before and after an image, of models that mark them.
IMAGE_MARKS = ("<start_of_image>", "<end_of_image>")


def open_engine(
    checkpoint: Checkpoint,
    *,
    adapter: Checkpoint | None = None,
    mask_decoder_file: Path | None = None,
    device: str = "auto",
    dtype: str = "auto",
    batch_size: int | None = None,
    quantize: str = "none",
    max_new_tokens: int = NEW_TOKENS,
) -> InferenceEngine:
    """An engine for the checkpoint; `batch_size` None is computed from free memory.

    An adapter is merged into the weights. `mask_decoder_file` has the weights that turn mask codes
    into pixels, by default from the checkpoint's folder. `quantize` is one of QUANTIZATIONS.
    An automatic batch size is computed for answers of `max_new_tokens` until a question is asked.
    Raises InvalidCheckpoint for files that are damaged or unsupported, NoUsableDevice if the device
    is missing, too small or cannot quantize, and UsageError for unknown names.
    """
    folder = checkpoint.folder
    chosen_device = choose_device(device)
    config = read_config(folder)
    chosen_dtype = choose_dtype(dtype, chosen_device, total_bytes(folder), float16_problem(config))
    tokenizer = read_tokenizer(folder, config)
    preprocessing = image_preprocessing(folder, read_description(folder))
    check_quantization(quantize, chosen_device, chosen_dtype, config.decoder)
    kind = chosen_device.type
    check_weights_fit(
        weight_bytes(config, chosen_dtype, device=kind, quantize=quantize),
        chosen_dtype,
        chosen_device,
        remedy=("<--quantize=> takes less; " if quantize == "none" else "") + SMALLER_MODEL,
    )
    mask_decoder_file = mask_decoder_file or own_mask_decoder(folder)
    decoder = None
    if mask_decoder_file is not None:
        decoder = mask_decoder.load_mask_decoder(mask_decoder_file, device=chosen_device)
    name = str(chosen_dtype).removeprefix("torch.")
    with memory_named(f"the weights in {name}", SMALLER_MODEL):
        model = weights.load_paligemma(
            folder,
            config,
            dtype=chosen_dtype,
            device=chosen_device,
            names=read_description(folder).names,
            adapter=None if adapter is None else partial(adapters.open_adapter, adapter.folder),
            finish=partial(optimize_part, quantize=quantize),
        )
    if adapter is not None:
        warn_of_another_base(adapter, checkpoint)
    free = free_bytes(chosen_device)
    budget = MemoryBudget(config, chosen_dtype.itemsize, chosen_device.type, free)
    return InferenceEngine(
        model,
        tokenizer,
        preprocessing,
        label=model_label(checkpoint, adapter),
        batch_size=budget.batch_size(max_new_tokens) if batch_size is None else batch_size,
        budget=budget if batch_size is None else None,
        mask_decoder=decoder,
    )


def model_label(checkpoint: Checkpoint, adapter: Checkpoint | None) -> str:
    """The `model` column of the rows: `NAME@REVISION`, with an adapter `+NAME@REVISION`."""
    return checkpoint.label if adapter is None else f"{checkpoint.label}+{adapter.label}"


def read_tokenizer(folder: Path, config: PaliGemmaConfig) -> Tokenizer:
    """The checkpoint's tokenizer; InvalidCheckpoint if it does not match the model."""
    tokenizer = Tokenizer.from_folder(folder, config.image_marks)
    if tokenizer.size > config.decoder.vocab_size:
        raise InvalidCheckpoint(
            f"{folder}: the tokenizer has {tokenizer.size} tokens, the model "
            f"{config.decoder.vocab_size}"
        )
    if config.image_marks is not None:
        for name, token in zip(IMAGE_MARKS, config.image_marks, strict=True):
            if tokenizer.id(name) != token:
                raise InvalidCheckpoint(f"{folder}: config.json and the tokenizer differ in {name}")
    if min(config.stop_tokens) >= tokenizer.size:
        raise InvalidCheckpoint(
            f"{folder}: the stop token is {config.stop_tokens[0]}, but the tokenizer has only "
            f"{tokenizer.size}"
        )
    return tokenizer


def check_quantization(
    name: str, device: torch.device, dtype: torch.dtype, config: DecoderConfig
) -> None:
    """Raise UsageError for an unknown name, NoUsableDevice if the device does not support it."""
    if name not in QUANTIZATIONS:
        raise UsageError(
            f"unknown quantization {name!r}",
            hint=f"{', '.join(QUANTIZATIONS[:-1])} or {QUANTIZATIONS[-1]}",
        )
    if name == "none":
        return
    if unsupported := quantization_problem(name, device, dtype, config):
        problem, remedy = unsupported
        raise NoUsableDevice(problem, hint=remedy)
