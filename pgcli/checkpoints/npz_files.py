"""Reads .npz files without pickles: headers first, then each array."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from reprlib import repr as brief
from tokenize import TokenError
from typing import Any

import numpy as np

from pgcli.checkpoints.files import open_model_file

MAX_ARRAYS = 1000
MAX_ARRAY_BYTES = 8 * 2**20
# the errors that zipfile and NumPy raise for invalid files
ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, struct.error, OSError, EOFError, NotImplementedError)
ARRAY_ERRORS = (ValueError, TypeError, SyntaxError, TokenError, RecursionError, MemoryError)
NPZ_ERRORS = (*ZIP_ERRORS, *ARRAY_ERRORS, OverflowError, KeyError)


@dataclass(frozen=True, slots=True)
class ArrayInfo:
    """The header of an array, and a function that reads the array."""

    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], np.ndarray[Any, Any]]


class InvalidNpz(Exception):
    """A .npz file or an array in it is invalid; the message continues "the file ..."."""


def read_npz_headers(
    file: Path, is_needed: Callable[[str], bool]
) -> Iterator[tuple[str, ArrayInfo]]:
    """The names and headers of the arrays that are needed; InvalidNpz for an invalid file."""
    names: set[str] = set()
    try:
        with open_model_file(file) as stream, zipfile.ZipFile(stream) as archive:
            members = archive.infolist()
            if len(members) > MAX_ARRAYS:
                raise InvalidNpz(f"has {len(members)} arrays, more than a mask decoder has")
            for member in members:
                name = member.filename.removesuffix(".npy")
                if name == member.filename or name in names:
                    raise InvalidNpz(
                        f"has {brief(member.filename)}, which is not an array or a second one"
                    )
                names.add(name)
                if is_needed(name):
                    yield name, _read_header(file, archive, member)
    except NPZ_ERRORS as error:
        raise InvalidNpz(f"is not an intact .npz file: {error}") from error


def _read_header(file: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> ArrayInfo:
    name = member.filename.removesuffix(".npy")
    if member.file_size > MAX_ARRAY_BYTES or member.flag_bits & 1:
        raise InvalidNpz(f"has {brief(name)}, which is encrypted or has {member.file_size} bytes")
    try:
        with archive.open(member) as stream:
            if np.lib.format.read_magic(stream) == (1, 0):
                shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
            else:
                shape, _, dtype = np.lib.format.read_array_header_2_0(stream)
    except ARRAY_ERRORS as error:
        raise InvalidNpz(f"has {brief(name)}, which is not an array") from error
    return ArrayInfo(shape, dtype.name, partial(_read_array, file, member.filename))


def _read_array(file: Path, filename: str) -> np.ndarray[Any, Any]:
    try:
        with (
            open_model_file(file) as opened,
            zipfile.ZipFile(opened) as archive,
            archive.open(filename) as stream,
        ):
            array: np.ndarray[Any, Any] = np.lib.format.read_array(stream, allow_pickle=False)
    except NPZ_ERRORS as error:
        raise InvalidNpz(f"has {filename}, which is cut short or damaged: {error}") from error
    return array
