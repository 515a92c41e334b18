"""What a checkpoint is and what it needs, read from its headers without loading a weight."""

from __future__ import annotations

from pgcli.checkpoints import files, weights
from pgcli.checkpoints.find import Checkpoint
from pgcli.engine.device import choose_device, choose_dtype
from pgcli.engine.memory import parameters, row_bytes

BATCH_SIZES = (1, 8, 16, 64)


def facts(
    checkpoint: Checkpoint, *, device: str = "auto", dtype: str = "auto"
) -> dict[str, object]:
    """Sizes, resolution, tokens per image, device, dtype, memory in bytes per batch size, files."""
    folder = checkpoint.folder
    config = files.config(folder)
    place = choose_device(device)
    stored_bytes = weights.total_bytes(folder)
    number = choose_dtype(dtype, place, stored_bytes)
    count, row = parameters(config), row_bytes(config, number.itemsize)
    return {
        "name": checkpoint.name,
        "path": str(folder),
        "revision": checkpoint.revision,
        "parameters": count,
        "resolution": config.vision.resolution,
        "patch_size": config.vision.patch_size,
        "image_tokens": config.image_tokens,
        "vocabulary": config.decoder.vocab_size,
        "device": str(place),
        "dtype": str(number).removeprefix("torch."),
        "memory": {str(n): count * number.itemsize + n * row for n in BATCH_SIZES},
        "files": {f.name: f.stat().st_size for f in sorted(folder.iterdir()) if f.is_file()},
    }
