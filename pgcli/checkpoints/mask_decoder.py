"""A file of mask decoder weights, big_vision's .npz or safetensors -> the decoder."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from reprlib import repr as brief
from tokenize import TokenError
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from pgcli.checkpoints.find import FETCH_DECODER
from pgcli.checkpoints.weights import Unfilled
from pgcli.errors import InvalidCheckpoint, ModelUnavailable
from pgcli.model.mask_decoder import NUM_CODES, MaskDecoder

#: How a user comes by the weights.
HINT = f"the published file is gs://big_vision/paligemma/vae-oid.npz: {FETCH_DECODER}"
CODEBOOK = "_vq_vae._embedding"
UNREAD = ("encoder.", "_vq_vae.")  # the published file's other half, which makes codes of masks
DTYPES = ("float16", "float32", "float64", "F16", "BF16", "F32", "F64")
MAX_CODE_WIDTH = 4096  # published: 512
MAX_FILE_BYTES = 256 * 2**20
MAX_TENSOR_BYTES = 8 * 2**20
MAX_TENSORS = 1000
# what zipfile and NumPy raise of files that are not what they should be
NO_ZIP = (zipfile.BadZipFile, zlib.error, struct.error, OSError, EOFError, NotImplementedError)
NO_ARRAY = (ValueError, TypeError, SyntaxError, TokenError, RecursionError, MemoryError)
BROKEN = (*NO_ZIP, *NO_ARRAY, OverflowError, KeyError)


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor in a file: what its header says of it, and how to read the rest."""

    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], Tensor]


def load(file: Path, *, device: torch.device | str = "cpu") -> MaskDecoder:
    """The decoder with a file's weights, in evaluation mode; in float64 where the device has it.

    The file is a .npz without pickles or safetensors, whatever its ending, in the names of the
    published one. Raises ModelUnavailable where there is no such file, InvalidCheckpoint, naming
    the file and the tensor, where it is broken or holds anything else. Nothing is read of a
    tensor before its header has been found right.
    """
    if not file.is_file():
        raise ModelUnavailable(f"there is no mask decoder file {file}", hint=HINT)
    stored = _stored(file)
    shape = stored[CODEBOOK].shape if CODEBOOK in stored else ()
    code_width = shape[1] if len(shape) == 2 and shape[1] <= MAX_CODE_WIDTH else 512
    with torch.device("meta"), Unfilled():
        decoder = MaskDecoder(code_width)
    home = {_published(name): tensor.shape for name, tensor in decoder.named_parameters()}
    _insist(file, stored, home)
    weights = {name: _read(file, _published(name), stored) for name in decoder.state_dict()}
    decoder.load_state_dict(weights, assign=True)
    # a mask must not depend on what else is decoded beside it, and costs a thousandth of its tokens
    dtype = torch.float32 if torch.device(device).type == "mps" else torch.float64
    return decoder.requires_grad_(False).eval().to(device, dtype)


def _published(name: str) -> str:
    return CODEBOOK if name == "codebook" else name


def _stored(file: Path) -> dict[str, Stored]:
    """The file's tensors by name, the encoder's left out."""
    if file.stat().st_size > MAX_FILE_BYTES:
        raise _invalid(file, f"is larger than {MAX_FILE_BYTES} bytes, which no mask decoder is")
    with file.open("rb") as opened:
        magic = opened.read(2)
    found = _npz(file) if magic == b"PK" else _safetensors(file)
    return {name: found[name] for name in found if name == CODEBOOK or not _is_unread(name)}


def _is_unread(name: str) -> bool:
    return name.startswith(UNREAD) and name != CODEBOOK


def _insist(file: Path, stored: dict[str, Stored], home: dict[str, torch.Size]) -> None:
    for name in home:
        if name not in stored:
            raise _invalid(file, f"has no tensor {name}")
    for name, tensor in stored.items():
        if name not in home:
            raise _invalid(file, f"holds {brief(name)}, which has no place in a mask decoder")
        if tensor.shape != home[name]:
            codebook = f"({NUM_CODES}, at most {MAX_CODE_WIDTH})"
            wanted = codebook if name == CODEBOOK else tuple(home[name])
            raise _invalid(file, f"holds {name} in the shape {tensor.shape}, not {wanted}")
        if tensor.dtype not in DTYPES:
            raise _invalid(file, f"holds {name} as {tensor.dtype}; floats are read")


def _read(file: Path, name: str, stored: dict[str, Stored]) -> Tensor:
    weights = stored[name].read().to(torch.float32)
    if not bool(weights.isfinite().all()):
        raise _invalid(file, f"holds numbers in {name} that are not finite")
    return weights


def _safetensors(file: Path) -> dict[str, Stored]:
    try:
        with safe_open(file, framework="pt", device="cpu") as opened:
            headers = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118
            return {
                name: Stored(
                    tuple(header.get_shape()),
                    header.get_dtype(),
                    partial(_safetensors_tensor, file, name),
                )
                for name, header in headers.items()
            }
    except (SafetensorError, OSError) as error:
        raise _invalid(file, f"is neither .npz nor safetensors: {error}") from error


def _safetensors_tensor(file: Path, name: str) -> Tensor:
    with safe_open(file, framework="pt", device="cpu") as opened:
        weights: Tensor = opened.get_tensor(name)
    return weights


def _npz(file: Path) -> dict[str, Stored]:
    found: dict[str, Stored] = {}
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            if len(members) > MAX_TENSORS:
                raise _invalid(file, f"holds {len(members)} arrays, which no mask decoder does")
            for member in members:
                name = member.filename.removesuffix(".npy")
                if name == member.filename or name in found:
                    raise _invalid(file, f"holds {brief(member.filename)}, no array or one of two")
                found[name] = _npy(file, archive, member)
    except BROKEN as error:
        raise _invalid(file, f"is no intact .npz file: {error}") from error
    return found


def _npy(file: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Stored:
    name = member.filename.removesuffix(".npy")
    if _is_unread(name):
        return Stored((), "unread", Tensor)
    if member.file_size > MAX_TENSOR_BYTES or member.flag_bits & 1:
        raise _invalid(file, f"holds {brief(name)} encrypted or in {member.file_size} bytes")
    try:
        with archive.open(member) as opened:
            shape, _, dtype = _header(opened)
    except NO_ARRAY as error:
        raise _invalid(file, f"holds {brief(name)}, which is no array") from error
    return Stored(shape, dtype.name, partial(_npy_tensor, file, member.filename))


def _header(opened: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(opened)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(opened)
    return np.lib.format.read_array_header_2_0(opened)


def _npy_tensor(file: Path, filename: str) -> Tensor:
    try:
        with zipfile.ZipFile(file) as archive, archive.open(filename) as opened:
            array = np.lib.format.read_array(opened, allow_pickle=False)
    except BROKEN as error:
        raise _invalid(file, f"holds {filename} cut short or damaged: {error}") from error
    with np.errstate(over="ignore"):  # what float32 cannot hold is found not to be finite
        return torch.from_numpy(array.astype(np.float32))


def _invalid(file: Path, what: str) -> InvalidCheckpoint:
    return InvalidCheckpoint(f"the mask decoder {file} {what}", hint=HINT)
