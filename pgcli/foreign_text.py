"""Recognises artefacts of other programs in files: byte order marks, Git LFS pointers, and
numbers that Python does not read.
"""

from __future__ import annotations

import re

BYTE_ORDER_MARK = "\ufeff"
#: At the start of a line, also behind the first: files are concatenated with theirs.
_MARKS = re.compile("^\ufeff+", re.MULTILINE)
#: How every pointer file begins (https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md).
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
#: The number of bytes that `is_lfs_pointer` needs from the start of a file.
LFS_HEAD_BYTES = len(_LFS_POINTER)
LFS_MESSAGE = "is a Git LFS pointer, not the file itself"
LFS_HINT = "run `git lfs pull` in its repository to download the file"


def decode_text(data: bytes) -> str:
    """UTF-8 text without byte order marks. Raises UnicodeDecodeError."""
    return without_marks(data.decode())


def without_marks(text: str) -> str:
    """The text without byte order marks at the start of its lines."""
    return _MARKS.sub("", text) if BYTE_ORDER_MARK in text else text


def is_lfs_pointer(head: bytes) -> bool:
    """Whether a file that begins with `head` is a Git LFS pointer."""
    return head.startswith(_LFS_POINTER)


def number_reason(problem: Exception) -> str:
    """Why a text is not valid; Python's own words about a long integer name a function of it."""
    is_long = "set_int_max_str_digits" in str(problem)
    return "it has a number of too many digits" if is_long else str(problem)
