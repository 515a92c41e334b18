"""Load a checkpoint's files into an embedding engine."""

from __future__ import annotations

from pathlib import Path

import torch

from pgcli.checkpoints import weights
from pgcli.checkpoints.families.paligemma import VISION_TENSORS
from pgcli.checkpoints.files import total_bytes
from pgcli.checkpoints.find import Checkpoint
from pgcli.checkpoints.model_description import (
    ModelDescription,
    image_preprocessing,
    read_description,
)
from pgcli.checkpoints.tokenizer import has_tokenizer, open_text_tokenizer
from pgcli.device.select import choose_device, choose_dtype, free_bytes
from pgcli.engine.engine import InferenceEngine
from pgcli.engine.memory import (
    MOST_ROWS,
    SHARE_OF_FREE,
    SMALLER_MODEL,
    check_weights_fit,
    encode_bytes,
    memory_named,
)
from pgcli.model.config import (
    ClassifierConfig,
    PaliGemmaConfig,
    TwoTowersConfig,
    VisionConfig,
)
from pgcli.model.cpu.optimize import optimize_encoders_for_cpu
from pgcli.model.siglip import ImageClassifier
from pgcli.model.two_towers import TwoTowers
from pgcli.towers.engine import EmbeddingEngine
from pgcli.towers.texts import (
    TextFormat,
    TextProcessor,
    as_typed,
    canonical_text,
    siglip_text,
)


def open_towers(
    checkpoint: Checkpoint,
    *,
    device: str = "auto",
    dtype: str = "auto",
    batch_size: int | None = None,
) -> EmbeddingEngine:
    """An engine for the checkpoint; `batch_size` None is computed from free memory.

    Only the vision tower of a PaliGemma checkpoint is read. Raises InvalidCheckpoint for damaged or
    unsupported files, NoUsableDevice if the device is missing or too small, and UsageError for
    unknown names.
    """
    folder = checkpoint.folder
    description = read_description(folder)
    chosen_device = choose_device(device)
    chosen_dtype = choose_dtype(dtype, chosen_device, total_bytes(folder))
    config = encoder_config(description)
    preprocessing = image_preprocessing(folder, description)
    # no tokenizer is needed for images
    texts = text_processor(folder, description) if has_tokenizer(folder) else None
    parameters = weights.count_parameters(config)
    check_weights_fit(lambda dtype, _: parameters * dtype.itemsize, chosen_dtype, chosen_device)
    name = str(chosen_dtype).removeprefix("torch.")
    with memory_named(f"the weights in {name}", SMALLER_MODEL):
        model = read_model(folder, description, dtype=chosen_dtype, device=chosen_device)
        optimize_encoders_for_cpu(model)
    if batch_size is None:
        free = free_bytes(chosen_device)
        batch_size = automatic_batch_size(config.vision, chosen_dtype, chosen_device, free)
    return EmbeddingEngine(
        model, description, preprocessing, texts, label=checkpoint.label, batch_size=batch_size
    )


def of_paligemma(engine: InferenceEngine) -> EmbeddingEngine:
    """An engine that embeds images with the vision tower of a loaded PaliGemma."""
    description = ModelDescription("paligemma", engine.model.config, VISION_TENSORS)
    config = encoder_config(description)
    assert isinstance(config, TwoTowersConfig)
    with weights.skip_init():
        towers = TwoTowers(config)
    towers.vision = engine.model.vision
    weight = engine.model.projector.weight
    free = free_bytes(weight.device)
    batch_size = automatic_batch_size(config.vision, weight.dtype, weight.device, free)
    return EmbeddingEngine(
        towers, description, engine.preprocessing, None, label=engine.label, batch_size=batch_size
    )


def encoder_config(description: ModelDescription) -> TwoTowersConfig | ClassifierConfig:
    """The configuration of the image encoder; PaliGemma's vision tower, averaged over patches."""
    config = description.config
    if isinstance(config, PaliGemmaConfig):
        return TwoTowersConfig("mean", config.vision, None, config.vision.width)
    return config


def read_model(
    folder: Path, description: ModelDescription, *, dtype: torch.dtype, device: torch.device
) -> TwoTowers | ImageClassifier:
    """The model with the checkpoint's weights."""
    is_paligemma = description.kind == "paligemma"
    names = VISION_TENSORS if is_paligemma else description.names
    config = encoder_config(description)
    return weights.load_encoder(folder, config, names, dtype=dtype, device=device)


def text_processor(folder: Path, description: ModelDescription) -> TextProcessor | None:
    """The encoder of texts; None for a model without a text tower."""
    config = description.config
    if not isinstance(config, TwoTowersConfig) or config.text is None:
        return None
    tokenizer = open_text_tokenizer(folder, config.text)
    if config.family == "clip":
        clean = as_typed
    else:  # in transformers, SigLIP 1's tokenizer removes underscores, SigLIP 2's nothing
        clean = canonical_text if tokenizer.is_gemma else siglip_text
    format = TextFormat(
        config.text.max_positions,
        tokenizer.bos,
        tokenizer.eos,
        tokenizer.pad,
        clean,
        tokenizer.adds_eos,
    )
    return TextProcessor(tokenizer.tokenizer, format)


def activation_bytes(vision: VisionConfig, dtype: torch.dtype, device: torch.device) -> int:
    """The bytes of one image's activations in the vision tower, with the buffers of kernels."""
    image = encode_bytes(vision, dtype.itemsize)
    return image * 3 // 2 if device.type == "cpu" else image  # CPU kernels allocate half again


def automatic_batch_size(
    vision: VisionConfig, dtype: torch.dtype, device: torch.device, free: int
) -> int:
    """How many images fit into `SHARE_OF_FREE` of the `free` memory, at most `MOST_ROWS`."""
    fitting = int(SHARE_OF_FREE[device.type] * free) // activation_bytes(vision, dtype, device)
    return max(1, min(MOST_ROWS[device.type], fitting))
