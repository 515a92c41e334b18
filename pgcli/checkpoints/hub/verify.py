"""Checks the sizes, checksums and safetensors headers of cached files, and names the remedy."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from safetensors import SafetensorError, safe_open

from pgcli.checkpoints.model_file import descriptor_path, open_model_file, unreadable
from pgcli.errors import InvalidCheckpoint

SHA256_DIGITS = 64


def check_header(file: Path) -> None:
    """Raise InvalidCheckpoint if the header is invalid or implies another file size."""
    try:
        with (
            open_model_file(file) as stream,
            safe_open(descriptor_path(stream), framework="numpy"),
        ):
            return
    except OSError as error:
        raise unreadable(file, error) from error
    except SafetensorError as error:
        raise InvalidCheckpoint(
            f"{file} is not an intact safetensors file: {error}", hint=_remedy(file.resolve())
        ) from error


def check_size(file: Path, size: int) -> None:
    """Raise InvalidCheckpoint if the size of a cached file is not that of the file on the Hub."""
    found = file.stat().st_size
    if found != size:
        raise InvalidCheckpoint(
            f"{file} is damaged: it has {found:,} bytes, and {size:,} on the Hub",
            hint=download_again(file.resolve()),
        )


def check_digests(digests: Mapping[Path, str]) -> None:
    """Raise InvalidCheckpoint if a downloaded file is damaged; the file is deleted.

    A digest is the SHA-256 of a large file, and Git's SHA-1 of the blob of a small one.
    """
    with ThreadPoolExecutor() as pool:
        found = list(pool.map(_digest, digests, map(len, digests.values())))
    damaged = [file for file, one in zip(digests, found, strict=True) if one != digests[file]]
    for file in damaged:
        file.resolve().unlink()
        file.unlink(missing_ok=True)
    if damaged:
        raise InvalidCheckpoint(
            f"{damaged[0].name} arrived damaged: its checksum is not the one that the Hub has",
            hint="the file was deleted: the same command again downloads it",
        )


def download_again(blob: Path) -> str:
    """The hint for a damaged file of the cache; a dangling link to it does no harm."""
    return f"delete {blob} and run the same command again, which downloads it"


def _remedy(blob: Path) -> str:
    if _digest(blob, SHA256_DIGITS) == blob.name:  # the file on the Hub is the same
        return (
            "the file on the Hub is the same: choose another --revision, or report it to the owner "
            "of the model"
        )
    return download_again(blob)


def _digest(file: Path, digits: int) -> str:
    with open_model_file(file) as stream:
        if digits == SHA256_DIGITS:
            return hashlib.file_digest(stream, "sha256").hexdigest()
        prefix = b"blob %d\0" % file.stat().st_size
        return hashlib.sha1(prefix + stream.read(), usedforsecurity=False).hexdigest()
