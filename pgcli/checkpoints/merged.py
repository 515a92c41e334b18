"""Writes whole checkpoints of PaliGemma: of a model in memory, or of a base with an adapter."""

from __future__ import annotations

from pathlib import Path

import torch

from pgcli.checkpoints import adapters, weights
from pgcli.checkpoints.config import read_config
from pgcli.checkpoints.generation_config import GENERATION
from pgcli.checkpoints.processor_files import IMAGE_PROCESSOR_FILES, TOKENIZER_FILES, copy_files
from pgcli.checkpoints.safetensors_files import TORCH_DTYPES, check_dtype, read_headers
from pgcli.checkpoints.save import save
from pgcli.checkpoints.weight_files import weight_files
from pgcli.model.paligemma import PaliGemma


def save_checkpoint(
    model: PaliGemma, folder: Path, *, source: Path, dtype: torch.dtype | None = None
) -> None:
    """Write the model with the tokenizer and the settings of the checkpoint `source`.

    The folder is loaded by `--model` and by transformers. `dtype` None is that of the stored
    weights of `source`. Raises ValueError for a model with adapters, or packed or quantized.
    """
    save(model, folder, dtype=stored_dtype(source) if dtype is None else dtype)
    copy_files(source, folder, (*TOKENIZER_FILES, *IMAGE_PROCESSOR_FILES, GENERATION))


def merge_adapter(base: Path, adapter: Path, folder: Path) -> None:
    """Write the checkpoint `base` with a PEFT adapter merged into its weights.

    Sums are computed in float32 and rounded once to the dtype in which `base` is stored. Raises
    InvalidCheckpoint as `weights.load` and `adapters.merge` do.
    """
    model = weights.load(base, read_config(base), dtype=stored_dtype(base))
    adapters.merge(model, adapter)
    save_checkpoint(model, folder, source=base)


def stored_dtype(folder: Path) -> torch.dtype:
    """The dtype of a checkpoint's weights; of several the widest."""
    dtype: torch.dtype | None = None
    for file in weight_files(folder):
        for tensor in read_headers(file):
            check_dtype(tensor)
            found = TORCH_DTYPES[tensor.dtype]
            dtype = found if dtype is None else torch.promote_types(dtype, found)
    return dtype or torch.float32
