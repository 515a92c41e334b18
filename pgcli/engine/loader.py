"""A checkpoint's files -> an engine that is ready to be asked."""

from __future__ import annotations

from pathlib import Path

from pgcli.checkpoints import adapters, mask_decoder, weights
from pgcli.checkpoints.config import read_config
from pgcli.checkpoints.find import Checkpoint
from pgcli.checkpoints.preprocessing import read_preprocessing
from pgcli.checkpoints.weight_files import total_bytes
from pgcli.device.select import choose_device, choose_dtype, free_bytes
from pgcli.engine.engine import Engine
from pgcli.engine.memory import batch_size as fitting_batch_size
from pgcli.engine.memory import parameters
from pgcli.engine.oom import memory_named
from pgcli.engine.quantization import check_quantization
from pgcli.engine.room import SMALLER, check_fits
from pgcli.engine.tokenizer import Tokenizer
from pgcli.errors import InvalidCheckpoint
from pgcli.model.config import PaliGemmaConfig
from pgcli.model.cpu.optimize import optimize_for_device


def load(
    checkpoint: Checkpoint,
    *,
    adapter: Checkpoint | None = None,
    masks: Path | None = None,
    device: str = "auto",
    dtype: str = "auto",
    batch_size: int | None = None,
    quantize: str = "none",
) -> Engine:
    """An engine for the checkpoint; `batch_size` None takes what fits into memory.

    An adapter is merged into the weights; `masks` is the file of the decoder that turns mask
    codes into pixels; `quantize` may be "int8", on a processor. Raises InvalidCheckpoint for files
    that are broken or not understood, NoUsableDevice where the device is missing, too small or not
    able to quantize, UsageError for names that are none.
    """
    folder = checkpoint.folder
    place = choose_device(device)
    number = choose_dtype(dtype, place, total_bytes(folder))
    config = read_config(folder)
    vocabulary = _vocabulary(folder, config)
    preprocessing = read_preprocessing(folder, config.vision.resolution)
    check_quantization(quantize, place, number)
    check_fits(parameters(config), number, place, quantize)
    decoder = None if masks is None else mask_decoder.load(masks, device=place)
    name = str(number).removeprefix("torch.")
    with memory_named(f"the weights in {name}", SMALLER):
        model = weights.load(folder, config, dtype=number, device=place)
        if adapter is not None:
            adapters.merge(model, adapter.folder)
        optimize_for_device(model, quantize)
    if batch_size is None:
        free = free_bytes(place)
        batch_size = fitting_batch_size(
            config, itemsize=number.itemsize, device=place.type, free=free
        )
    return Engine(
        model,
        vocabulary,
        preprocessing,
        label=label(checkpoint, adapter),
        batch_size=batch_size,
        mask_decoder=decoder,
    )


def label(checkpoint: Checkpoint, adapter: Checkpoint | None) -> str:
    """What the rows' `model` says: name and revision, and those of the adapter after a plus."""
    return checkpoint.label if adapter is None else f"{checkpoint.label}+{adapter.label}"


def _vocabulary(folder: Path, config: PaliGemmaConfig) -> Tokenizer:
    """The checkpoint's tokens; InvalidCheckpoint where they are not those of its model."""
    vocabulary = Tokenizer.from_folder(folder)
    if vocabulary.size > config.decoder.vocab_size:
        raise InvalidCheckpoint(
            f"{folder}: the tokenizer has {vocabulary.size} tokens, the model "
            f"{config.decoder.vocab_size}"
        )
    if min(config.stop_tokens) >= vocabulary.size:
        raise InvalidCheckpoint(
            f"{folder}: answers end with token {config.stop_tokens[0]}, and the tokenizer has "
            f"{vocabulary.size}"
        )
    return vocabulary
