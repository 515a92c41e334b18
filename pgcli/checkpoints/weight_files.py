"""Selects the files of a checkpoint that are read: never a pickle, never code."""

from __future__ import annotations

import json
import re
import shlex
import warnings
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Literal

from pgcli.checkpoints.files import ADAPTER_CONFIG, OPEN_CLIP, missing_file, read_object
from pgcli.errors import InvalidCheckpoint

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
# the files of a tokenizer without a tokenizer.json
SENTENCEPIECE = ("tokenizer.model", "spiece.model", "added_tokens.json", *TOKEN_NAMES)
TOKENIZER_FILES = (TOKENIZER, *SENTENCEPIECE, "vocab.json", "merges.txt")

SHARD_NAME = re.compile(r"[A-Za-z0-9._-]+\.safetensors")
#: Suffixes of pickles, which can run code when they are read.
PICKLES = (".bin", ".pt", ".ckpt", ".pth")


def weight_files(folder: Path) -> list[Path]:
    """The files with the weights of a model in a folder.

    They are `model.safetensors`, or else the shards of the index, or else every safetensors file,
    as in transformers. Raises InvalidCheckpoint if there are none, or if a shard is missing.
    """
    files = file_names(folder)
    names = _weight_names(str(folder), files, folder.joinpath)
    if names == [SINGLE] and INDEX in files:
        _warn_of_stale_index(folder)
    return [folder / name for name in names]


@cache  # one run asks for the files several times
def _warn_of_stale_index(folder: Path) -> None:
    """Warn of an index beside `model.safetensors` that is not of this file."""
    with suppress(InvalidCheckpoint):
        if set(weight_map(folder / INDEX).values()) == {SINGLE}:
            return
    warnings.warn(
        f"{folder}: reading {SINGLE}, as transformers does; ignoring {INDEX}, which names other "
        "files",
        stacklevel=1,
    )


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
    described = [config, *((TOKENIZER, *TOKEN_NAMES) if TOKENIZER in names else SENTENCEPIECE)]
    described += [GENERATION, *IMAGE_PROCESSOR_FILES, INDEX]
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


def conversion_command(folder: str) -> str:
    """The command that adds safetensors to a folder of pickles; transformers reads them safely."""
    quoted = json.dumps(folder)
    code = (
        f"import transformers as t; c = t.AutoConfig.from_pretrained({quoted}); M = getattr(t, "
        f'c.architectures[0]); M.from_pretrained({quoted}, dtype="auto").save_pretrained({quoted})'
    )
    return f"python -c {shlex.quote(code)}"


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
    files = [name for name in sorted(names) if SHARD_NAME.fullmatch(name)]
    if own := [name for name in files if not name.startswith(OPEN_CLIP)]:
        return own
    raise _no_weights(repository, names, "model")


def _no_weights(repository: str, names: Collection[str], kind: CheckpointKind) -> InvalidCheckpoint:
    """The error for a folder or a repository without safetensors; pickles can be converted."""
    message = f"{repository} has no {ADAPTER_WEIGHTS if kind == 'adapter' else 'safetensors file'}"
    hint = "download it again, name another folder, or look for a <--revision=> with safetensors"
    for name in sorted(names):
        if not name.endswith(PICKLES):
            continue
        folder, fetch = repository, ""
        if not Path(repository).is_dir():
            folder = repository.rpartition("/")[2]
            fetch = f"hf download {shlex.quote(repository)} --local-dir {shlex.quote(folder)} && "
        convert = (
            "save it again with PEFT: save_pretrained writes safetensors"
            if kind == "adapter"
            else f"convert it: {fetch}{conversion_command(folder)}"
        )
        return InvalidCheckpoint(f"{message}; {name} is a pickle, which can run code", hint=convert)
    return InvalidCheckpoint(message, hint=hint)
