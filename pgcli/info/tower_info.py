"""The sizes of two towers or a classifier and the memory needed, without loading weights."""

from __future__ import annotations

from dataclasses import asdict

from pgcli.checkpoints import weights
from pgcli.checkpoints.find import Checkpoint
from pgcli.checkpoints.model_description import ModelDescription
from pgcli.checkpoints.weight_files import total_bytes
from pgcli.device.select import choose_device, choose_dtype, free_bytes
from pgcli.engine.memory import LARGEST_BATCH
from pgcli.info.model_info import BATCH_SIZES, stored_dtypes
from pgcli.model.config import ClassifierConfig
from pgcli.towers.loader import activation_bytes, automatic_batch_size, encoder_config


def tower_info(
    checkpoint: Checkpoint,
    description: ModelDescription,
    *,
    device: str = "auto",
    dtype: str = "auto",
) -> dict[str, object]:
    """The same as `model_info.model_info`, for two towers and classifiers.

    `embedding` is the number of values of an embedding, None for a classifier; `text_tokens` the
    length to which texts are padded, None without a text tower.
    """
    folder, config = checkpoint.folder, encoder_config(description)
    is_classifier = isinstance(config, ClassifierConfig)
    vision, text = config.vision, None if isinstance(config, ClassifierConfig) else config.text
    chosen_device = choose_device(device)
    chosen_dtype = choose_dtype(dtype, chosen_device, total_bytes(folder))
    parameters, free = weights.count_parameters(config), free_bytes(chosen_device)
    weight_bytes = parameters * chosen_dtype.itemsize
    image = activation_bytes(vision, chosen_dtype, chosen_device)
    remaining = max(0, free - weight_bytes)
    kinds = stored_dtypes(folder)
    return {
        "name": checkpoint.name,
        "path": str(folder),
        "revision": checkpoint.revision,
        "kind": description.kind,
        "parameters": parameters,
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
        "weights_bytes": weight_bytes,
        "memory": {str(rows): weight_bytes + rows * image for rows in BATCH_SIZES},
        "free_memory": free,
        "largest_batch": min(LARGEST_BATCH, remaining // image),
        "batch_size": automatic_batch_size(vision, chosen_dtype, chosen_device, remaining),
        "files": {f.name: f.stat().st_size for f in sorted(folder.iterdir()) if f.is_file()},
    }
