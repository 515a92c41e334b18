"""Writes a safetensors file one tensor at a time, so that no second copy of all is in memory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

DTYPES: Mapping[torch.dtype, str] = MappingProxyType({torch.float32: "F32", torch.float64: "F64"})
ALIGNMENT = 8  # of the header's length, in bytes


class TensorSpec(NamedTuple):
    """The name, dtype and shape of a tensor."""

    name: str
    dtype: torch.dtype
    shape: Sequence[int]


def write_tensors(
    file: Path, specs: Sequence[TensorSpec], tensors: Iterable[Tensor], metadata: Mapping[str, str]
) -> None:
    """Write the tensors of the specs, in their order. Raises OSError."""
    header, end = {"__metadata__": {**metadata}}, 0
    entries = {}
    for name, dtype, shape in specs:
        start, end = end, end + dtype.itemsize * torch.Size(shape).numel()
        entries[name] = {"dtype": DTYPES[dtype], "shape": [*shape], "data_offsets": [start, end]}
    text = json.dumps(header | entries).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    with file.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            flat = tensor.detach().cpu().contiguous().reshape(-1)
            stream.write(flat.view(torch.uint8).numpy().data)
