"""Writes a safetensors file one tensor at a time, so that no second copy of all is in memory."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from pgcli.checkpoints.safetensors_files import TORCH_DTYPES

DTYPE_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}
ALIGNMENT = 8  # of the header's length, in bytes


class TensorSpec(NamedTuple):
    """The name, dtype and shape of a tensor."""

    name: str
    dtype: torch.dtype
    shape: Sequence[int]


def write_tensors(
    file: Path, specs: Sequence[TensorSpec], tensors: Iterable[Tensor], metadata: Mapping[str, str]
) -> None:
    """Write the tensors of the specs, in their order, to disk. Raises OSError.

    Tensors of one dtype in the order of their names make the bytes of safetensors' `save_file`,
    which raises no OSError and leaves a temporary file behind if the process is killed.
    """
    header, end = {"__metadata__": {**metadata}}, 0
    entries = {}
    for name, dtype, shape in specs:
        start, end = end, end + dtype.itemsize * torch.Size(shape).numel()
        offsets = {"shape": [*shape], "data_offsets": [start, end]}
        entries[name] = {"dtype": DTYPE_NAMES[dtype], **offsets}
    text = json.dumps(header | entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    with file.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            flat = tensor.detach().cpu().contiguous().reshape(-1)
            stream.write(flat.view(torch.uint8).numpy().data)
        stream.flush()
        os.fsync(stream.fileno())
