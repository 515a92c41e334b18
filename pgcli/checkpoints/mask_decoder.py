"""Loads mask decoder weights from big_vision's .npz file or from safetensors."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from reprlib import repr as brief

import numpy as np
import torch
from torch import Tensor

from pgcli.checkpoints.files import open_model_file
from pgcli.checkpoints.find import FETCH_DECODER
from pgcli.checkpoints.npz_files import ArrayInfo, InvalidNpz, read_npz_headers
from pgcli.checkpoints.safetensors_files import read_headers, read_tensor
from pgcli.checkpoints.weights import skip_init
from pgcli.errors import InvalidCheckpoint, ModelUnavailable
from pgcli.model.mask_decoder import NUM_CODES, MaskDecoder

#: Where the weights are published.
HINT = f"the published file is gs://big_vision/paligemma/vae-oid.npz: {FETCH_DECODER}"
CODEBOOK = "_vq_vae._embedding"
ENCODER = ("encoder.", "_vq_vae.")  # the published file has the encoder too, which is not read
DTYPES = ("float16", "float32", "float64", "F16", "BF16", "F32", "F64")
MAX_CODE_WIDTH = 4096  # published: 512
MAX_FILE_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class MaskTensor:
    """A tensor's header, and a function that reads the tensor in its stored dtype."""

    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], Tensor]


def load(file: Path, *, device: torch.device | str = "cpu") -> MaskDecoder:
    """The mask decoder with a file's weights, in evaluation mode; float64 except on MPS.

    The file is .npz without pickles or safetensors, whatever its suffix, with the names of the
    published file. Raises ModelUnavailable if it does not exist, InvalidCheckpoint with the
    tensor's name if it is invalid. All headers are checked before a tensor is read.
    """
    if not file.is_file():
        raise ModelUnavailable(f"there is no mask decoder file {file}", hint=HINT)
    try:
        return _load(file, torch.device(device))
    except InvalidNpz as error:
        raise _invalid(file, str(error)) from error


def _load(file: Path, device: torch.device) -> MaskDecoder:
    tensors = _read_all_headers(file)
    shape = tensors[CODEBOOK].shape if CODEBOOK in tensors else ()
    code_width = shape[1] if len(shape) == 2 and shape[1] <= MAX_CODE_WIDTH else 512
    with skip_init():
        decoder = MaskDecoder(code_width)
    shapes = {_published(name): tensor.shape for name, tensor in decoder.named_parameters()}
    _check_tensors(file, tensors, shapes)
    weights = {name: _read(file, _published(name), tensors) for name in decoder.state_dict()}
    decoder.load_state_dict(weights, assign=True)
    # float64: a mask must not depend on its batch, and decoding takes a thousandth of its tokens
    dtype = torch.float32 if device.type == "mps" else torch.float64
    return decoder.requires_grad_(False).eval().to(device, dtype)


def _published(name: str) -> str:
    return CODEBOOK if name == "codebook" else name


def _is_needed(name: str) -> bool:
    return name == CODEBOOK or not name.startswith(ENCODER)


def _read_all_headers(file: Path) -> dict[str, MaskTensor]:
    """The file's tensors by name, without the encoder's."""
    with open_model_file(file) as stream:
        if os.fstat(stream.fileno()).st_size > MAX_FILE_BYTES:
            raise _invalid(file, f"is larger than {MAX_FILE_BYTES} bytes, the most that is read")
        is_zip = stream.read(2) == b"PK"
    if is_zip:
        return {
            name: MaskTensor(array.shape, array.dtype, partial(_to_tensor, array))
            for name, array in read_npz_headers(file, _is_needed)
        }
    try:
        return {
            tensor.name: MaskTensor(tensor.shape, tensor.dtype, partial(read_tensor, tensor))
            for tensor in read_headers(file)
            if _is_needed(tensor.name)
        }
    except InvalidCheckpoint as error:
        raise _invalid(file, f"is neither .npz nor safetensors: {error}") from error


def _to_tensor(array: ArrayInfo) -> Tensor:
    with np.errstate(over="ignore"):  # overflow gives infinity, which is refused later
        return torch.from_numpy(array.read().astype(np.float32))


def _check_tensors(
    file: Path, tensors: dict[str, MaskTensor], shapes: dict[str, torch.Size]
) -> None:
    for name in shapes:
        if name not in tensors:
            raise _invalid(file, f"has no tensor {name}")
    for name, tensor in tensors.items():
        if name not in shapes:
            raise _invalid(file, f"has {brief(name)}, which is not a tensor of a mask decoder")
        if tensor.shape != shapes[name]:
            codebook = f"({NUM_CODES}, at most {MAX_CODE_WIDTH})"
            expected = codebook if name == CODEBOOK else tuple(shapes[name])
            raise _invalid(file, f"has {name} in the shape {tensor.shape}, not {expected}")
        if tensor.dtype not in DTYPES:
            raise _invalid(file, f"has {name} as {tensor.dtype}, which is not a float")


def _read(file: Path, name: str, tensors: dict[str, MaskTensor]) -> Tensor:
    weights = tensors[name].read().to(torch.float32)
    if not bool(weights.isfinite().all()):
        raise _invalid(file, f"has values in {name} that are not finite")
    return weights


def _invalid(file: Path, problem: str) -> InvalidCheckpoint:
    return InvalidCheckpoint(f"the mask decoder {file} {problem}", hint=HINT)
