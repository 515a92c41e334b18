"""The beginning of PaliGemma: its weights, what is trained of them, and how they are saved."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch

from pgcli.checkpoints import weights
from pgcli.checkpoints.find import Checkpoint
from pgcli.checkpoints.model_description import read_description
from pgcli.checkpoints.preprocessing import read_preprocessing
from pgcli.checkpoints.save import save_checkpoint
from pgcli.checkpoints.weight_files import total_bytes
from pgcli.device.select import choose_dtype
from pgcli.errors import UsageError
from pgcli.model.config import PaliGemmaConfig
from pgcli.model.gemma import GemmaDecoderLayer
from pgcli.model.paligemma import PaliGemma
from pgcli.model.quantized.frozen import freeze_in_int8
from pgcli.training.answers.lora import add_lora, load_adapter, save_adapter
from pgcli.training.options import TrainOptions
from pgcli.training.task import Start


def compute_twice(model: PaliGemma) -> bool:
    """Compute activations again in the backward pass; return whether that saves memory now.

    It does in the towers that gradients pass.
    """
    is_new = not model.decoder.gradient_checkpointing
    model.decoder.gradient_checkpointing = True
    trains_vision = any(weight.requires_grad for weight in model.vision.parameters())
    model.vision.gradient_checkpointing = trains_vision
    return is_new


def base_dtype(options: TrainOptions, checkpoint: Checkpoint, device: torch.device) -> torch.dtype:
    """The dtype of the weights: float32 where they are trained, that of inference beside LoRA."""
    if options.method == "full":
        return torch.float32
    return choose_dtype(options.dtype, device, total_bytes(checkpoint.folder))


def start_answers(
    options: TrainOptions,
    checkpoint: Checkpoint,
    config: PaliGemmaConfig,
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> Start:
    """PaliGemma with weights of the dtype, and what is trained of it."""
    folder = checkpoint.folder
    is_int8 = options.quantize == "int8"
    model = weights.load(folder, config, dtype=dtype, device="cpu" if is_int8 else device)
    if is_int8:
        freeze_in_int8(model)
        model.to(device)
    preprocessing = read_preprocessing(folder, config.vision.resolution)
    if options.method == "full":
        train_all(model, options)
        save = partial(save_checkpoint, model, source=folder, dtype=torch.float32)
        return Start(model, preprocessing, save)
    add_lora(model, options.lora, options.seed)
    if options.adapter is not None:
        load_adapter(model, Path(options.adapter))

    def save_lora(target: Path) -> None:
        save_adapter(
            model,
            options.lora,
            target,
            base_model=checkpoint.name,
            revision=checkpoint.revision,
        )

    return Start(model, preprocessing, save_lora)


def check_kind(checkpoint: Checkpoint) -> None:
    """Raise UsageError unless the checkpoint is PaliGemma."""
    if read_description(checkpoint.folder).kind != "paligemma":
        raise UsageError(
            f"{checkpoint.name} does not answer prompts, which train teaches without --task",
            hint="name PaliGemma; --task contrastive trains two towers, --task classify a "
            "classifier",
        )


def train_all(model: PaliGemma, options: TrainOptions) -> None:
    """Train all weights but those of the parts that are frozen."""
    model.requires_grad_(requires_grad=True)
    for name in options.freeze:
        model.get_submodule(name).requires_grad_(requires_grad=False)
    for layer in model.decoder.layers:
        assert isinstance(layer, GemmaDecoderLayer)
        layer.dropout = options.dropout
