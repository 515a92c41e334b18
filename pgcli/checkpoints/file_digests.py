"""Digests of a checkpoint's files, cached for as long as a file does not change."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from pgcli.checkpoints.hub.cached_models import own_cache
from pgcli.checkpoints.model_file import open_model_file
from pgcli.printable import encodable
from pgcli.stores.files import read_text

#: The files that answers depend on.
SUFFIXES = (".safetensors", ".json", ".model", ".npz")
DIGEST_LENGTH = 16
MAX_CACHED = 1000


def folder_digests(folder: Path) -> dict[str, str]:
    """The names of a checkpoint's files that answers depend on, with the start of their digests.

    The path of the folder does not matter. Raises InvalidCheckpoint for a file that cannot be read.
    """
    files = sorted(one for one in folder.iterdir() if one.suffix in SUFFIXES and one.is_file())
    pairs = zip(files, digests(files), strict=True)
    return {encodable(file.name): digest[:DIGEST_LENGTH] for file, digest in pairs}


def digests(files: Iterable[Path]) -> list[str]:
    """The SHA-256 of each file, from the cache if the file is the same and has not changed.

    The time of the last change (ctime) is compared, which no program can set back.
    """
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
    with open_model_file(file) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def cache_key(file: Path) -> str:
    """The key of a file's digest in the cache."""
    status = file.stat()
    path = os.fsencode(os.path.realpath(file)).decode("utf-8", "replace")
    times = f"{status.st_mtime_ns} {status.st_ctime_ns}"
    return f"{path} {status.st_size} {times} {status.st_dev} {status.st_ino}"


def cache_file() -> Path:
    """The file of cached digests, which may be deleted at any time."""
    return own_cache() / "digests.json"


def load_digests() -> dict[str, str]:
    """The cached digests by key; none if the file cannot be read."""
    try:
        cached = json.loads(read_text(cache_file()))
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
