"""Recognises what other programs put before or in place of a file's content: byte order marks,
and the pointer files of Git LFS.
"""

from __future__ import annotations

BYTE_ORDER_MARK = "\ufeff"
#: How every pointer file begins (https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md).
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
#: The number of bytes that `is_lfs_pointer` needs from the start of a file.
LFS_HEAD_BYTES = len(_LFS_POINTER)
LFS_MESSAGE = "is a Git LFS pointer, not the file itself"
LFS_HINT = "run `git lfs pull` in its repository to download the file"


def decode_text(data: bytes) -> str:
    """UTF-8 text without a byte order mark. Raises UnicodeDecodeError."""
    return data.decode().removeprefix(BYTE_ORDER_MARK)


def is_lfs_pointer(head: bytes) -> bool:
    """Whether a file that begins with `head` is a Git LFS pointer."""
    return head.startswith(_LFS_POINTER)
