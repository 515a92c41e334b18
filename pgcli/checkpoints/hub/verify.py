"""Whether a weight file in the cache is whole, as far as its header tells, with the remedy."""

from __future__ import annotations

import hashlib
from pathlib import Path

from safetensors import SafetensorError, safe_open

from pgcli.errors import InvalidCheckpoint


def insist(file: Path) -> None:
    """Raise InvalidCheckpoint where the header is broken, or says another length than there is."""
    try:
        with safe_open(file, framework="numpy"):
            return
    except (SafetensorError, OSError) as error:
        raise InvalidCheckpoint(
            f"{file} is no intact safetensors file: {error}", hint=_remedy(file.resolve())
        ) from error


def insist_on_size(file: Path, size: int) -> None:
    """Raise InvalidCheckpoint where a file in the cache has another length than on the Hub."""
    found = file.stat().st_size
    if found != size:
        raise InvalidCheckpoint(
            f"{file} is damaged: it has {found:,} bytes, and {size:,} on the Hub",
            hint=again(file.resolve()),
        )


def again(blob: Path) -> str:
    """How to have one file of the cache downloaded anew: the link to it may stay."""
    return f"delete {blob} and run the same command again, which downloads it anew"


def _remedy(blob: Path) -> str:
    with blob.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest == blob.name:  # the Hub's own file is like that
        return (
            "it is the same on the Hub: choose another --revision, or tell the owner of the model"
        )
    return again(blob)
