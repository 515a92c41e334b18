"""The safetensors files of a checkpoint: what is in them, each tensor read plainly into place."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from reprlib import repr as brief

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from pgcli.errors import InvalidCheckpoint

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
#: The largest model of this family needs a fiftieth; a header takes fifteen times its bytes.
MAX_HEADER_BYTES = 8 * 2**20
MAX_NAME_LENGTH, MAX_DIMENSIONS = 1000, 16
PIECE_BYTES = 16 * 2**20  # so much is held on the way to another dtype or device


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor in a file: as its header describes it, nothing of it read yet."""

    name: str
    file: Path
    shape: tuple[int, ...]
    dtype: str
    offset: int
    nbytes: int


def read_headers(file: Path) -> Iterator[TensorInfo]:
    """The tensors that a file says it holds, once safetensors has found its header sound."""
    try:
        check_header_size(file)
        with safe_open(file, framework="pt", device="cpu"):
            pass
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            described = json.loads(opened.read(length))
    except (SafetensorError, OSError, ValueError) as error:
        raise InvalidCheckpoint(
            f"{file} is no intact safetensors file: {error}", hint="download the model again"
        ) from error
    described.pop("__metadata__", None)
    for name, about in described.items():
        if len(name) > MAX_NAME_LENGTH or len(about["shape"]) > MAX_DIMENSIONS:
            raise InvalidCheckpoint(f"{file.name} has a tensor of no such model: {brief(name)}")
        start, end = about["data_offsets"]
        yield TensorInfo(
            name, file, tuple(about["shape"]), about["dtype"], 8 + length + start, end - start
        )


def check_header_size(file: Path) -> None:
    """Raise InvalidCheckpoint for a header of millions of tensors, before any of it is parsed."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
    if MAX_HEADER_BYTES < length <= file.stat().st_size:
        raise InvalidCheckpoint(f"{file.name} has a header of {length:,} bytes")


def read_into(place: Tensor, tensor: TensorInfo) -> None:
    """Fill a contiguous `place` of the tensor's shape, of any dtype on any device.

    The file is read, not mapped: pages of a mapped file would count as this process's memory, and
    the peak of loading would be twice the weights.
    """
    flat = place.view(-1)
    kept = DTYPES[tensor.dtype]
    with _opened(tensor) as file:
        if flat.dtype == kept and flat.device.type == "cpu":
            _fill(flat, file, tensor)
            return
        held = torch.empty(min(PIECE_BYTES // kept.itemsize, flat.numel()), dtype=kept)
        for start in range(0, len(flat), len(held) or 1):
            piece = flat[start : start + len(held)]
            part = held[: len(piece)]
            _fill(part, file, tensor)
            piece.copy_(part)


def tensors_equal(first: TensorInfo, second: TensorInfo) -> bool:
    """Whether two tensors are the same to the bit, no more than a piece of each held at once."""
    if (first.dtype, first.shape) != (second.dtype, second.shape):
        return False
    with _opened(first) as one, _opened(second) as other:
        for start in range(0, first.nbytes, PIECE_BYTES):
            length = min(PIECE_BYTES, first.nbytes - start)
            if one.read(length) != other.read(length):
                return False
    return True


def _opened(tensor: TensorInfo) -> FileIO:
    try:
        file = FileIO(tensor.file, "r")
        file.seek(tensor.offset)
    except OSError as error:
        raise InvalidCheckpoint(f"{tensor.file} cannot be read: {error.strerror}") from error
    return file


def _fill(flat: Tensor, file: FileIO, tensor: TensorInfo) -> None:
    """Read as many bytes as the memory takes."""
    left = memoryview(flat.view(torch.uint8).numpy().data)
    try:
        while left:
            count = file.readinto(left)
            if not count:
                raise InvalidCheckpoint(
                    f"{tensor.file} ends before {tensor.name} does", hint="download the model again"
                )
            left = left[count:]
    except OSError as error:
        raise InvalidCheckpoint(
            f"{tensor.file} cannot be read: {os.strerror(error.errno or 0)}"
        ) from error
