"""Selects the files of a checkpoint, never a pickle or code; opens, reads and digests them."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import Any, Literal

from pgcli.errors import InvalidCheckpoint, OutputFailed
from pgcli.rows import DIGEST_CHARACTERS
from pgcli.stores import files as regular_files
from pgcli.stores.files import NotRegularFileError, open_regular
from pgcli.stores.writing import write_json
from pgcli.text import (
    LFS_HEAD_BYTES,
    LFS_HINT,
    LFS_MESSAGE,
    decode_text,
    encodable,
    is_lfs_pointer,
    number_reason,
)

MAX_JSON_BYTES = 8 * 2**20  # the largest published file has 1 MiB; parsing takes 30 times its size
ADAPTER_CONFIG = "adapter_config.json"
#: Endings of the files that determine answers.
SUFFIXES = (".safetensors", ".json", ".jinja", ".model", ".npz")
MAX_CACHED = 1000
CheckpointKind = Literal["model", "adapter"]
CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
GENERATION = "generation_config.json"
#: The newer file takes precedence.
IMAGE_PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")
TOKENIZER = "tokenizer.json"
# the names of the tokens that end and pad texts
TOKEN_NAMES = ("tokenizer_config.json", "special_tokens_map.json")
#: The files of a chat template, which may also stand in `tokenizer_config.json`.
CHAT_TEMPLATES = ("chat_template.jinja", "chat_template.json")
#: The files of a tokenizer; other programs read the ones after TOKEN_NAMES.
TOKENIZER_FILES = (
    *(TOKENIZER, *TOKEN_NAMES, "tokenizer.model", "spiece.model", "added_tokens.json"),
    *("vocab.json", "merges.txt"),
)
SHARD_NAME = re.compile(r"[A-Za-z0-9._-]+\.safetensors")
#: Suffixes of pickles, which can run code when they are read.
PICKLES = (".bin", ".pt", ".ckpt", ".pth")


def open_model_file(file: Path) -> BufferedReader:
    """The file, opened for reading. Raises InvalidCheckpoint with the reason and the remedy."""
    try:
        stream = open_regular(file)
        head = stream.peek(LFS_HEAD_BYTES)
    except FileNotFoundError as error:
        raise InvalidCheckpoint(f"{file} is missing", hint="download the model again") from error
    except NotRegularFileError as error:
        raise InvalidCheckpoint(
            f"{file} is not a regular file", hint="replace it with a file, or remove it"
        ) from error
    except OSError as error:
        raise unreadable(file, error) from error
    if is_lfs_pointer(head):
        stream.close()
        raise InvalidCheckpoint(f"{file} {LFS_MESSAGE}", hint=LFS_HINT)
    return stream


def unreadable(file: Path, error: OSError) -> InvalidCheckpoint:
    """The error of a file that the system does not let us read; its contents may be intact."""
    hint = "check the disk"
    if isinstance(error, PermissionError):
        hint = f"change the permissions of the file or of its folder: ls -la {file.parent}"
    return InvalidCheckpoint(f"{file} cannot be read: {error.strerror or error}", hint=hint)


def descriptor_path(stream: BufferedReader) -> str:
    """A path to the open file, for libraries that open files by name."""
    return f"/dev/fd/{stream.fileno()}"


def read_object(file: Path) -> dict[str, Any]:
    """The object in a JSON file of a checkpoint. Raises InvalidCheckpoint."""
    if not os.path.lexists(file):
        names = {path.name for path in file.parent.glob("*")}
        raise missing_file(str(file.parent), file.name, names)
    try:
        with open_model_file(file) as stream:
            data = stream.read(MAX_JSON_BYTES + 1)
        if len(data) > MAX_JSON_BYTES:
            raise InvalidCheckpoint(f"{file.name} is larger than {MAX_JSON_BYTES} bytes")
        values = json.loads(decode_text(data))
    except OSError as error:
        raise unreadable(file, error) from error
    except (ValueError, RecursionError) as error:
        raise InvalidCheckpoint(f"{file} cannot be read: {number_reason(error)}") from error
    if not isinstance(values, dict):
        raise InvalidCheckpoint(f"{file} is not a JSON object")
    return values


def read_optional(file: Path) -> dict[str, Any]:
    """The object in a JSON file of a checkpoint; empty if the file does not exist."""
    return read_object(file) if os.path.lexists(file) else {}


def missing_file(repository: str, name: str, names: Collection[str]) -> InvalidCheckpoint:
    """The error for a folder or a repository that has files with these names, but not `name`."""
    message = f"{repository} has no {name}"
    if name == ADAPTER_CONFIG:
        hint = "save an adapter with PEFT's save_pretrained; for a full model, use <--model=>"
    elif ADAPTER_CONFIG in names:
        message = f"{repository} is an adapter, not a model"
        hint = "name the model it was made for with <--model=>, and this one with <--adapter=>"
    else:
        hint = "a checkpoint is a folder or a repository in the Hugging Face layout"
    return InvalidCheckpoint(message, hint=hint)


def damage_hint(file: Path) -> str:
    """The hint for a damaged file; in the Hub's cache it is a link to its contents."""
    if not file.is_symlink():
        return "download it again"
    return (
        f"delete {file.resolve()} and run the same command again, which downloads it; if that does "
        "not help, the file on the Hub is damaged: choose another <--revision=>, or report it to "
        "the owner of the model"
    )


def folder_digests(folder: Path) -> dict[str, str]:
    """The starts of the digests of the files that determine answers, by file name.

    Independent of the folder's path. Raises InvalidCheckpoint for an unreadable file.
    """
    files = sorted(file for file in folder.iterdir() if file.suffix in SUFFIXES and file.is_file())
    pairs = zip(files, digests(files), strict=True)
    return {encodable(file.name): digest[:DIGEST_CHARACTERS] for file, digest in pairs}


def digests(files: Iterable[Path]) -> list[str]:
    """The SHA-256 of each file, from the cache if the file has not changed.

    Compares the time of the last status change (ctime), which programs cannot reset.
    """
    files, cached = list(files), regular_files.read_json(cache_file()) or {}
    keys = [cache_key(file) for file in files]
    unknown = [index for index, key in enumerate(keys) if key not in cached]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        new = pool.map(sha256, (files[index] for index in unknown))
        for index, digest in zip(unknown, new, strict=True):
            cached[keys[index]] = digest
    if unknown:
        with suppress(OutputFailed):  # a cache that cannot be written
            write_json(cache_file(), dict(list(cached.items())[-MAX_CACHED:]))
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
    """The file of cached digests, which may be deleted at any time.

    An empty or relative XDG_CACHE_HOME is ignored: other users could create such a folder.
    """
    folder = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not folder.is_absolute():
        folder = Path(os.path.expanduser("~/.cache"))  # noqa: PTH111 - Path raises without a home
    return folder / "pgcli" / "digests.json"


def weight_files(folder: Path) -> list[Path]:
    """The files with the weights of a model in a folder.

    They are `model.safetensors`, or else the shards of the index, or else every safetensors file,
    as in transformers. Raises InvalidCheckpoint if there are none, or if a shard is missing.
    """
    names = _weight_names(str(folder), file_names(folder), folder.joinpath)
    return [folder / name for name in names]


def total_bytes(folder: Path) -> int:
    """The size of a checkpoint's weight files."""
    return sum(file.stat().st_size for file in weight_files(folder))


def file_names(folder: Path) -> set[str]:
    """The names of the files in a folder."""
    return {file.name for file in folder.glob("*") if file.exists()}


def required_files(
    repository: str, kind: CheckpointKind, names: Collection[str], path_of: Callable[[str], Path]
) -> list[str]:
    """The files that are read, among the names of a repository's files; weights come last.

    `path_of` returns the path of a file; it is called for the index of the weights only.
    Raises InvalidCheckpoint if the configuration or the weights are missing.
    """
    config = ADAPTER_CONFIG if kind == "adapter" else CONFIG
    if config not in names:
        raise missing_file(repository, config, names)
    if kind == "adapter":
        if ADAPTER_WEIGHTS not in names:
            raise _no_weights(repository, names, kind)
        return [ADAPTER_CONFIG, ADAPTER_WEIGHTS]
    weights = _weight_names(repository, names, path_of)
    described = [config, TOKENIZER, *TOKEN_NAMES, *CHAT_TEMPLATES, GENERATION]
    described += [*IMAGE_PROCESSOR_FILES, INDEX]
    return [*(name for name in described if name in names), *weights]


def weight_map(index: Path) -> dict[str, str]:
    """Tensor name to file name, from an index of the weights; all files are in its folder."""
    names = read_object(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise InvalidCheckpoint(f"{index} has no weight_map")
    for tensor, file in names.items():
        if not isinstance(file, str) or not SHARD_NAME.fullmatch(file):
            raise InvalidCheckpoint(
                f"{INDEX} maps {tensor} to {file!r}, which is not a file of the folder"
            )
    return names


def _weight_names(
    repository: str, names: Collection[str], path_of: Callable[[str], Path]
) -> list[str]:
    """The names of a model's weight files."""
    if SINGLE in names:  # other files may be an adapter, or of another model or save
        return [SINGLE]
    if INDEX in names:
        shards = sorted(set(weight_map(path_of(INDEX)).values()))
        for shard in shards:
            if shard not in names:
                raise InvalidCheckpoint(
                    f"{repository} has no {shard}, which its {INDEX} names",
                    hint="download the model again, choose another <--revision=>, or report the "
                    "missing file to the owner",
                )
        return shards
    if files := [name for name in sorted(names) if SHARD_NAME.fullmatch(name)]:
        return files
    raise _no_weights(repository, names, "model")


def _no_weights(repository: str, names: Collection[str], kind: CheckpointKind) -> InvalidCheckpoint:
    """The error for a folder or a repository without safetensors; pickles can be converted."""
    message = f"{repository} has no {ADAPTER_WEIGHTS if kind == 'adapter' else 'safetensors file'}"
    hint = "download it again, name another folder, or look for a <--revision=> with safetensors"
    if pickles := sorted(name for name in names if name.endswith(PICKLES)):
        message += f"; {pickles[0]} is a pickle, which can run code"
        hint = "load it with transformers or PEFT: save_pretrained writes safetensors"
    return InvalidCheckpoint(message, hint=hint)
