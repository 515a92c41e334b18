"""Reads and writes safetensors files tensor by tensor, without a second copy in memory."""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from reprlib import repr as brief
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from pgcli.checkpoints.files import damage_hint, descriptor_path, open_model_file, unreadable
from pgcli.errors import InvalidCheckpoint

TORCH_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
DTYPE_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}
ALIGNMENT = 8  # of the header's length, in bytes
#: Model weights and adapters are stored in one of these.
WEIGHT_DTYPES = ("F32", "F16", "BF16")
#: The largest PaliGemma needs a fiftieth of this; a parsed header takes 15 times its size.
MAX_HEADER_BYTES = 8 * 2**20
MAX_NAME_LENGTH, MAX_DIMENSIONS = 1000, 16
CHUNK_BYTES = 16 * 2**20  # the buffer for tensors that change dtype or device


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor's entry in the header of a file."""

    name: str
    file: Path
    shape: tuple[int, ...]
    dtype: str
    offset: int
    nbytes: int


def read_metadata(file: Path) -> dict[str, str]:
    """The metadata in a file's header; InvalidCheckpoint if the file is not valid safetensors."""
    metadata: dict[str, str] = _read_header(file)[1].get("__metadata__", {})
    return metadata


def read_headers(file: Path) -> Iterator[TensorInfo]:
    """The tensors in a file's header; InvalidCheckpoint if the file is not valid safetensors."""
    length, header = _read_header(file)
    header.pop("__metadata__", None)
    for name, entry in header.items():
        if len(name) > MAX_NAME_LENGTH or len(entry["shape"]) > MAX_DIMENSIONS:
            raise InvalidCheckpoint(f"{file.name} has an unknown tensor {brief(name)}")
        start, end = entry["data_offsets"]
        yield TensorInfo(
            name, file, tuple(entry["shape"]), entry["dtype"], 8 + length + start, end - start
        )


def _read_header(file: Path) -> tuple[int, dict[str, Any]]:
    """The length of a file's header, and its values."""
    try:
        with open_model_file(file) as stream:
            length = int.from_bytes(stream.read(8), "little")
            if MAX_HEADER_BYTES < length <= os.fstat(stream.fileno()).st_size:
                raise InvalidCheckpoint(f"{file.name} has a header of {length:,} bytes")
            with safe_open(descriptor_path(stream), framework="pt", device="cpu"):
                pass
            return length, json.loads(stream.read(length))
    except OSError as error:
        raise unreadable(file, error) from error
    except (SafetensorError, ValueError) as error:
        raise InvalidCheckpoint(
            f"{file} is not a valid safetensors file: {error}", hint=damage_hint(file)
        ) from error


def check_dtype(tensor: TensorInfo, allowed: Collection[str] = WEIGHT_DTYPES) -> None:
    """Raise InvalidCheckpoint unless the tensor's dtype is allowed."""
    if tensor.dtype not in allowed:
        raise InvalidCheckpoint(
            f"{tensor.name} is stored as {tensor.dtype}",
            hint=f"supported: {', '.join(allowed)}; quantized checkpoints are not supported",
        )


def read_tensor(tensor: TensorInfo) -> Tensor:
    """The tensor in its stored dtype, on the CPU."""
    values = torch.empty(tensor.shape, dtype=TORCH_DTYPES[tensor.dtype])
    read_into(values, tensor)
    return values


def read_into(out: Tensor, tensor: TensorInfo) -> None:
    """Fill `out`, a contiguous tensor of the same shape, of any dtype on any device.

    The file is read, not mapped: mapped pages count as memory of the process, and the peak of
    loading would be twice the weights.
    """
    flat = out.view(-1)
    stored_dtype = TORCH_DTYPES[tensor.dtype]
    with _open_at_tensor(tensor) as file:
        if flat.dtype == stored_dtype and flat.device.type == "cpu":
            _fill(flat, file, tensor)
            return
        size = min(CHUNK_BYTES // stored_dtype.itemsize, flat.numel())
        buffer = torch.empty(size, dtype=stored_dtype)
        for start in range(0, len(flat), len(buffer) or 1):
            target = flat[start : start + len(buffer)]
            chunk = buffer[: len(target)]
            _fill(chunk, file, tensor)
            target.copy_(chunk)


def map_tensor(tensor: TensorInfo) -> Tensor:
    """The memory-mapped tensor in its stored dtype; changes to it do not change the file."""
    start = tensor.offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    skipped = tensor.offset - start
    try:
        with open_model_file(tensor.file) as file:
            length = skipped + tensor.nbytes
            pages = mmap.mmap(file.fileno(), length, access=mmap.ACCESS_COPY, offset=start)
    except (OSError, ValueError) as error:  # the file has become shorter
        raise InvalidCheckpoint(
            f"{tensor.file} cannot be mapped: {error}", hint=damage_hint(tensor.file)
        ) from error
    dtype = TORCH_DTYPES[tensor.dtype]
    count = tensor.nbytes // dtype.itemsize
    return torch.frombuffer(pages, dtype=dtype, count=count, offset=skipped).view(tensor.shape)


def tensors_equal(first: TensorInfo, second: TensorInfo) -> bool:
    """Whether two tensors are bitwise equal; at most two chunks are in memory."""
    if (first.dtype, first.shape) != (second.dtype, second.shape):
        return False
    with _open_at_tensor(first) as first_file, _open_at_tensor(second) as second_file:
        for start in range(0, first.nbytes, CHUNK_BYTES):
            length = min(CHUNK_BYTES, first.nbytes - start)
            if first_file.read(length) != second_file.read(length):
                return False
    return True


def _open_at_tensor(tensor: TensorInfo) -> BufferedReader:
    file = open_model_file(tensor.file)
    file.seek(tensor.offset)
    return file


def _fill(flat: Tensor, file: BufferedReader, tensor: TensorInfo) -> None:
    """Fill `flat` from the file."""
    remaining = memoryview(flat.view(torch.uint8).numpy().data)
    try:
        while remaining:
            count = file.readinto(remaining)
            if not count:
                raise InvalidCheckpoint(
                    f"{tensor.file} ends before {tensor.name} does",
                    hint=damage_hint(tensor.file),
                )
            remaining = remaining[count:]
    except OSError as error:
        raise unreadable(tensor.file, error) from error


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
