"""Describes a checkpoint and the memory it needs, without loading its weights."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from pgcli.checkpoints import safetensors_files, weights
from pgcli.checkpoints.config import ModelDescription, read_config
from pgcli.checkpoints.files import total_bytes, weight_files
from pgcli.checkpoints.find import Checkpoint
from pgcli.device.select import choose_device, choose_dtype, free_bytes
from pgcli.engine.loader import check_quantization
from pgcli.engine.memory import (
    LARGEST_BATCH,
    MemoryBudget,
    batch_bytes,
    cache_bytes,
    group_bytes,
    largest_batch,
    parameters,
    weight_bytes,
)
from pgcli.model.config import ClassifierConfig, PaliGemmaConfig
from pgcli.model.optimize import float16_problem
from pgcli.towers.engine import activation_bytes, automatic_batch_size, encoder_config
from pgcli.towers.pages import automatic_pages

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
DTYPE_NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def model_info(
    checkpoint: Checkpoint, *, device: str = "auto", dtype: str = "auto", quantize: str = "none"
) -> dict[str, object]:
    """Sizes, resolution, tokens per image, device, dtype, memory in bytes per batch size, files.

    `largest_batch` fits into free memory, and is 0 if the weights alone do not; `batch_size` is the
    automatic one. `stored_dtype` is null if the files contain several dtypes. Raises as
    `check_quantization`.
    """
    folder = checkpoint.folder
    config = read_config(folder)
    chosen_device = choose_device(device)
    chosen_dtype = choose_dtype(dtype, chosen_device, total_bytes(folder), float16_problem(config))
    size, free = chosen_dtype.itemsize, free_bytes(chosen_device)
    kind = chosen_device.type
    check_quantization(quantize, chosen_device, chosen_dtype, config.decoder)
    needed = weight_bytes(config, chosen_dtype, device=kind, quantize=quantize)
    remaining = max(0, free - needed)
    kinds = stored_dtypes(folder)
    pages: dict[str, object] = {}
    if config.vector_size is not None:
        each = group_bytes(config, size, 1, kind)
        pages = {
            "kind": "multi_vector",
            "embedding": config.vector_size,
            "memory": {str(n): needed + n * each for n in BATCH_SIZES},
            "largest_batch": min(LARGEST_BATCH, remaining // each),
            "batch_size": automatic_pages(config, chosen_dtype, chosen_device, remaining),
        }
    return {
        "name": checkpoint.name,
        "path": str(folder),
        "revision": checkpoint.revision,
        "kind": "paligemma" if config.image_marks is None else "instruct",
        "parameters": parameters(config),
        "resolution": config.vision.resolution,
        "patch_size": config.vision.patch_size,
        "image_tokens": config.image_tokens,
        "vocabulary": config.decoder.vocab_size,
        "architecture": architecture(config),
        "stored_dtype": kinds[0] if len(kinds) == 1 else None,
        "device": str(chosen_device),
        "dtype": str(chosen_dtype).removeprefix("torch."),
        "cache_bytes_per_token": cache_bytes(config, size),
        "quantize": quantize,
        "weights_bytes": needed,
        "memory": {str(n): needed + batch_bytes(config, size, n, device=kind) for n in BATCH_SIZES},
        "free_memory": free,
        "largest_batch": largest_batch(config, itemsize=size, device=kind, remaining=remaining),
        "batch_size": MemoryBudget(config, size, kind, remaining).batch_size(),
        "files": {f.name: f.stat().st_size for f in sorted(folder.iterdir()) if f.is_file()},
        **pages,
    }


def architecture(config: PaliGemmaConfig) -> dict[str, object]:
    """The generation and the configuration of both towers."""
    return {
        "generation": 1 + config.decoder.post_norms + config.decoder.qk_norm,
        "vision": asdict(config.vision),
        "decoder": asdict(config.decoder),
        "tied": config.tied,
    }


def stored_dtypes(folder: Path) -> list[str]:
    """The PyTorch names of the dtypes of a checkpoint's tensors."""
    headers = (
        tensor for file in weight_files(folder) for tensor in safetensors_files.read_headers(file)
    )
    return sorted({DTYPE_NAMES.get(tensor.dtype, tensor.dtype) for tensor in headers})


def tower_info(
    checkpoint: Checkpoint,
    description: ModelDescription,
    *,
    device: str = "auto",
    dtype: str = "auto",
) -> dict[str, object]:
    """The same as `model_info`, for two towers and classifiers.

    `embedding` is the embedding dimension, None for a classifier; `text_tokens` is the padded
    length of texts, None without a text tower.
    """
    folder, config = checkpoint.folder, encoder_config(description)
    is_classifier = isinstance(config, ClassifierConfig)
    vision, text = config.vision, None if isinstance(config, ClassifierConfig) else config.text
    chosen_device = choose_device(device)
    chosen_dtype = choose_dtype(dtype, chosen_device, total_bytes(folder))
    count, free = weights.count_parameters(config), free_bytes(chosen_device)
    needed = count * chosen_dtype.itemsize
    image = activation_bytes(vision, chosen_dtype, chosen_device)
    remaining = max(0, free - needed)
    kinds = stored_dtypes(folder)
    return {
        "name": checkpoint.name,
        "path": str(folder),
        "revision": checkpoint.revision,
        "kind": description.kind,
        "parameters": count,
        "resolution": vision.resolution,
        "patch_size": vision.patch_size,
        "image_tokens": vision.num_patches,
        "embedding": None if isinstance(config, ClassifierConfig) else config.embedding_dim,
        "text_tokens": None if text is None else text.max_positions,
        "vocabulary": None if text is None else text.vocab_size,
        "labels": list(description.labels) if is_classifier else None,
        "architecture": {
            "family": config.family,
            "vision": asdict(vision),
            "text": None if text is None else asdict(text),
        },
        "stored_dtype": kinds[0] if len(kinds) == 1 else None,
        "device": str(chosen_device),
        "dtype": str(chosen_dtype).removeprefix("torch."),
        "weights_bytes": needed,
        "memory": {str(rows): needed + rows * image for rows in BATCH_SIZES},
        "free_memory": free,
        "largest_batch": min(LARGEST_BATCH, remaining // image),
        "batch_size": automatic_batch_size(vision, chosen_dtype, chosen_device, remaining),
        "files": {f.name: f.stat().st_size for f in sorted(folder.iterdir()) if f.is_file()},
    }
