"""Loads mask decoder weights from big_vision's .npz file or from safetensors."""

from __future__ import annotations

import io
import os
import zipfile
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from reprlib import repr as brief
from tokenize import TokenError
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pgcli.checkpoints.files import open_model_file
from pgcli.checkpoints.find import FETCH_DECODER
from pgcli.checkpoints.safetensors_files import TORCH_DTYPES, read_headers, read_tensor
from pgcli.checkpoints.weights import skip_init
from pgcli.errors import InvalidCheckpoint, ModelUnavailable
from pgcli.model.mask_decoder import NUM_CODES, MaskDecoder

#: Where the weights are published.
HINT = f"the published file is gs://big_vision/paligemma/vae-oid.npz: {FETCH_DECODER}"
CODEBOOK = "_vq_vae._embedding"
ENCODER = ("encoder.", "_vq_vae.")  # the published file has the encoder too, which is not read
MAX_CODE_WIDTH = 4096  # published: 512
MAX_FILE_BYTES = 256 * 2**20
MAX_ARRAY_BYTES = 8 * 2**20
# the errors that zipfile and NumPy raise for invalid files
NPZ_ERRORS = (
    *(zipfile.BadZipFile, zlib.error, OSError, EOFError, NotImplementedError, ValueError),
    *(TypeError, SyntaxError, TokenError, RecursionError, MemoryError, OverflowError, KeyError),
)
Readers = Mapping[str, Callable[[], Tensor]]


def load_mask_decoder(file: Path, *, device: torch.device | str = "cpu") -> MaskDecoder:
    """The mask decoder with a file's weights, in evaluation mode; float64 except on MPS.

    The file is .npz without pickles or safetensors, whatever its suffix, with the names of the
    published file. Raises ModelUnavailable if it does not exist, InvalidCheckpoint with the
    tensor's name if it is invalid. All names are checked before a tensor is read.
    """
    if not file.is_file():
        raise ModelUnavailable(f"there is no mask decoder file {file}", hint=HINT)
    try:
        decoder = _load(_readers(file))
    except _Invalid as error:
        raise InvalidCheckpoint(f"the mask decoder {file} {error}", hint=HINT) from error
    # float64: a mask must not depend on its batch, and decoding takes a thousandth of its tokens
    dtype = torch.float32 if torch.device(device).type == "mps" else torch.float64
    return decoder.requires_grad_(False).eval().to(device, dtype)


class _Invalid(Exception):
    """An error in the file; the message continues "the mask decoder FILE ..."."""


def _load(readers: Readers) -> MaskDecoder:
    """The decoder with these tensors. Raises _Invalid for wrong names, shapes or values."""
    with skip_init():
        names = [_published(name) for name in MaskDecoder(1).state_dict()]
    for name in names:
        if name not in readers:
            raise _Invalid(f"has no tensor {name}")
    for name in readers:
        if name not in names:
            raise _Invalid(f"has {brief(name)}, which is not a tensor of a mask decoder")
    tensors = {name: readers[name]() for name in names}
    codes = tensors[CODEBOOK]
    if codes.ndim != 2 or len(codes) != NUM_CODES or codes.shape[1] > MAX_CODE_WIDTH:
        expected = f"({NUM_CODES}, at most {MAX_CODE_WIDTH})"
        raise _Invalid(f"has {CODEBOOK} in the shape {tuple(codes.shape)}, not {expected}")
    with skip_init():
        decoder = MaskDecoder(codes.shape[1])
    weights = {}
    for name, parameter in decoder.state_dict().items():
        published = _published(name)
        tensor, shape = tensors[published], tuple(parameter.shape)
        if tensor.shape != parameter.shape:
            raise _Invalid(f"has {published} in the shape {tuple(tensor.shape)}, not {shape}")
        if not tensor.is_floating_point():
            dtype = str(tensor.dtype).removeprefix("torch.")
            raise _Invalid(f"has {published} as {dtype}, which is not a float")
        weights[name] = tensor.to(torch.float32)
        if not bool(weights[name].isfinite().all()):
            raise _Invalid(f"has values in {published} that are not finite")
    decoder.load_state_dict(weights, assign=True)
    return decoder


def _published(name: str) -> str:
    return CODEBOOK if name == "codebook" else name


def _is_needed(name: str) -> bool:
    return name == CODEBOOK or not name.startswith(ENCODER)


def _readers(file: Path) -> Readers:
    """Functions that read the file's tensors, by name, without the encoder's."""
    with open_model_file(file) as stream:
        if os.fstat(stream.fileno()).st_size > MAX_FILE_BYTES:
            raise _Invalid(f"is larger than {MAX_FILE_BYTES} bytes, the limit for this file")
        if stream.peek(2).startswith(b"PK"):
            return _read_npz(stream.read())
    readers = {}
    try:
        for tensor in read_headers(file):
            if not _is_needed(tensor.name):
                continue
            if tensor.dtype not in TORCH_DTYPES:
                raise _Invalid(f"has {tensor.name} as {tensor.dtype}, which is not a float")
            readers[tensor.name] = partial(read_tensor, tensor)
    except InvalidCheckpoint as error:
        raise _Invalid(f"is neither .npz nor safetensors: {error}") from error
    return readers


def _read_npz(data: bytes) -> Readers:
    """Functions that read the arrays of a .npz file, without pickles."""
    try:
        archive = np.load(io.BytesIO(data), allow_pickle=False)
    except NPZ_ERRORS as error:
        raise _Invalid(f"is not a valid .npz file: {error}") from error
    return {name: partial(_read_array, archive, name) for name in archive if _is_needed(name)}


def _read_array(archive: Any, name: str) -> Tensor:
    try:
        if (size := archive.zip.getinfo(f"{name}.npy").file_size) > MAX_ARRAY_BYTES:
            raise _Invalid(f"has {brief(name)} with {size:,} bytes, more than a mask decoder has")
        array = np.asarray(archive[name])
        native = array.dtype.newbyteorder("=")
        return torch.from_numpy(np.ascontiguousarray(array, dtype=native))
    except NPZ_ERRORS as error:
        raise _Invalid(f"has {brief(name)}, which is truncated or damaged: {error}") from error
