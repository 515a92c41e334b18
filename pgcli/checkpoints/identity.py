"""What a checkpoint is, by its files: digests that are remembered as long as a file is the same."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

#: What of a folder decides on answers.
ENDINGS = (".safetensors", ".json", ".model", ".npz")
MOST_REMEMBERED = 1000


def folder_digest(folder: Path) -> str:
    """A digest of all that a checkpoint's folder holds for answers.

    A change of any byte changes it; the folder's name and place do not.
    """
    files = sorted(one for one in folder.iterdir() if one.suffix in ENDINGS)
    whole = hashlib.sha256()
    for file, digest in zip(files, digests(files), strict=True):
        whole.update(f"{file.name} {digest}\n".encode("utf-8", "surrogateescape"))
    return whole.hexdigest()


def digests(files: Iterable[Path]) -> list[str]:
    """The SHA-256 of each file; of one that was hashed before and is as it was, from memory.

    A file is as it was while path, size, time of change and inode are.
    """
    files, memory = list(files), remembered()
    keys = [key(file) for file in files]
    unknown = [n for n, one in enumerate(keys) if one not in memory]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for number, digest in zip(
            unknown, pool.map(sha256, (files[n] for n in unknown)), strict=True
        ):
            memory[keys[number]] = digest
    if unknown:
        remember(memory)
    return [memory[one] for one in keys]


def sha256(file: Path) -> str:
    """The digest of a file's bytes."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def key(file: Path) -> str:
    """What a file's digest is remembered under."""
    status = file.stat()
    path = os.fsencode(os.path.realpath(file)).decode("utf-8", "replace")
    return f"{path} {status.st_size} {status.st_mtime_ns} {status.st_dev} {status.st_ino}"


def store() -> Path:
    """The file that digests are remembered in, which may be removed at any time."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
    return Path(cache) / "pgcli" / "digests.json"


def remembered() -> dict[str, str]:
    """The digests known, by their files; none where they cannot be read."""
    try:
        known = json.loads(store().read_text(encoding="utf-8"))
        return {str(one): str(digest) for one, digest in known.items()}
    except (OSError, ValueError, AttributeError):
        return {}


def remember(known: dict[str, str]) -> None:
    """Keep the digests, the newest of them; where that fails they are computed again."""
    file = store()
    beside = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        newest = dict(list(known.items())[-MOST_REMEMBERED:])
        beside.write_text(json.dumps(newest, indent=1), encoding="utf-8")
        beside.replace(file)
