"""Load a checkpoint's files into an embedding engine."""

from __future__ import annotations

from pathlib import Path

import torch

from pgcli.checkpoints import weights
from pgcli.checkpoints.find import Checkpoint
from pgcli.checkpoints.model_description import ModelDescription, read_description
from pgcli.checkpoints.preprocessing import read_preprocessing
from pgcli.checkpoints.text_tokenizer import open_text_tokenizer
from pgcli.checkpoints.weight_files import total_bytes
from pgcli.device.select import choose_device, choose_dtype, free_bytes
from pgcli.embedding.engine import EmbeddingEngine
from pgcli.embedding.texts import TextFormat, TextProcessor
from pgcli.engine.memory import MOST_ROWS, SHARE_OF_FREE, SMALLER_MODEL, check_fits
from pgcli.engine.oom import memory_named
from pgcli.model.classifier import ImageClassifier
from pgcli.model.config import (
    ClassifierConfig,
    PaliGemmaConfig,
    TwoTowersConfig,
    VisionConfig,
)
from pgcli.model.two_towers import TwoTowers


def load(
    checkpoint: Checkpoint,
    *,
    device: str = "auto",
    dtype: str = "auto",
    batch_size: int | None = None,
) -> EmbeddingEngine:
    """An engine for the checkpoint; `batch_size` None is computed from free memory.

    Of a PaliGemma checkpoint the vision tower alone is read. Raises InvalidCheckpoint for files
    that are damaged or unsupported, NoUsableDevice if the device is missing or too small, and
    UsageError for unknown names.
    """
    folder = checkpoint.folder
    description = read_description(folder)
    chosen_device = choose_device(device)
    chosen_dtype = choose_dtype(dtype, chosen_device, total_bytes(folder))
    config = encoder_config(description)
    preprocessing = read_preprocessing(folder, config.vision.resolution, family(description))
    texts = None
    if isinstance(config, TwoTowersConfig) and config.text is not None:
        texts = text_processor(folder, config)
    parameters = weights.count_parameters(config)
    check_fits(parameters, chosen_dtype, chosen_device, "none")
    name = str(chosen_dtype).removeprefix("torch.")
    with memory_named(f"the weights in {name}", SMALLER_MODEL):
        model = read_model(folder, config, dtype=chosen_dtype, device=chosen_device)
    if batch_size is None:
        batch_size = automatic_batch_size(config.vision, chosen_dtype, chosen_device)
    return EmbeddingEngine(
        model, description, preprocessing, texts, label=checkpoint.label, batch_size=batch_size
    )


def encoder_config(description: ModelDescription) -> TwoTowersConfig | ClassifierConfig:
    """The sizes of what encodes images; of PaliGemma the vision tower, and the patches' mean."""
    config = description.config
    if isinstance(config, PaliGemmaConfig):
        return TwoTowersConfig("mean", config.vision, None, config.vision.width)
    return config


def family(description: ModelDescription) -> str | None:
    """The family of the vision tower, by which images are prepared; None for PaliGemma."""
    config = description.config
    return None if isinstance(config, PaliGemmaConfig) else config.family


def read_model(
    folder: Path,
    config: TwoTowersConfig | ClassifierConfig,
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> TwoTowers | ImageClassifier:
    """The model with the checkpoint's weights."""
    if isinstance(config, ClassifierConfig):
        return weights.load_classifier(folder, config, dtype=dtype, device=device)
    return weights.load_two_towers(folder, config, dtype=dtype, device=device)


def text_processor(folder: Path, config: TwoTowersConfig) -> TextProcessor:
    """How texts become tokens: SigLIP's in lower case and without punctuation."""
    assert config.text is not None
    found = open_text_tokenizer(folder, config.text)
    format = TextFormat(
        config.text.max_positions,
        found.bos,
        found.eos,
        found.pad,
        canonical=config.family == "siglip",
    )
    return TextProcessor(found.tokenizer, format)


def automatic_batch_size(vision: VisionConfig, dtype: torch.dtype, device: torch.device) -> int:
    """How many images fit into `SHARE_OF_FREE` of the free memory, at most `MOST_ROWS`."""
    image = vision.num_positions * (8 * vision.width + 2 * vision.mlp_dim) * dtype.itemsize
    if device.type == "cpu":  # kernels allocate half as much again
        image = image * 3 // 2
    fitting = int(SHARE_OF_FREE * free_bytes(device)) // image
    return max(1, min(MOST_ROWS[device.type], fitting))
