"""Digests of a checkpoint's files, cached for as long as a file does not change."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

#: The files that answers depend on.
SUFFIXES = (".safetensors", ".json", ".model", ".npz")
MAX_CACHED = 1000


def folder_digest(folder: Path) -> str:
    """A digest of all files of a checkpoint that answers depend on.

    It depends on the names and bytes of the files, not on the folder's path.
    """
    files = sorted(file for file in folder.iterdir() if file.suffix in SUFFIXES)
    combined = hashlib.sha256()
    for file, digest in zip(files, digests(files), strict=True):
        combined.update(f"{file.name} {digest}\n".encode("utf-8", "surrogateescape"))
    return combined.hexdigest()


def digests(files: Iterable[Path]) -> list[str]:
    """The SHA-256 of each file, from the cache if path, size, mtime and inode are the same."""
    files, cached = list(files), load_digests()
    keys = [cache_key(file) for file in files]
    unknown = [index for index, key in enumerate(keys) if key not in cached]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        new = pool.map(sha256, (files[index] for index in unknown))
        for index, digest in zip(unknown, new, strict=True):
            cached[keys[index]] = digest
    if unknown:
        save_digests(cached)
    return [cached[key] for key in keys]


def sha256(file: Path) -> str:
    """The SHA-256 of a file's bytes."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def cache_key(file: Path) -> str:
    """The key of a file's digest in the cache."""
    status = file.stat()
    path = os.fsencode(os.path.realpath(file)).decode("utf-8", "replace")
    return f"{path} {status.st_size} {status.st_mtime_ns} {status.st_dev} {status.st_ino}"


def cache_file() -> Path:
    """The file of cached digests, which may be deleted at any time."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
    return Path(cache) / "pgcli" / "digests.json"


def load_digests() -> dict[str, str]:
    """The cached digests by key; none if the file cannot be read."""
    try:
        cached = json.loads(cache_file().read_text(encoding="utf-8"))
        return {str(key): str(digest) for key, digest in cached.items()}
    except (OSError, ValueError, AttributeError):
        return {}


def save_digests(cached: dict[str, str]) -> None:
    """Write the newest digests to the cache; a failure to write is ignored."""
    file = cache_file()
    temporary = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        newest = dict(list(cached.items())[-MAX_CACHED:])
        temporary.write_text(json.dumps(newest, indent=1), encoding="utf-8")
        temporary.replace(file)
