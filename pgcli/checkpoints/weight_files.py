"""Finds the files that hold a checkpoint's weights."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from pgcli.checkpoints.conversion_hints import PICKLES, conversion_command
from pgcli.checkpoints.json_file import read_json
from pgcli.errors import InvalidCheckpoint

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
OPEN_CLIP_CONFIG = "open_clip_config.json"
OPEN_CLIP_SINGLE = "open_clip_model.safetensors"
SHARD_NAME = re.compile(r"[A-Za-z0-9._-]+\.safetensors")


def is_open_clip(names: Collection[str]) -> bool:
    """Whether these are the files of open_clip's layout, and not those of transformers too."""
    has_weights = SINGLE in names or INDEX in names
    return OPEN_CLIP_CONFIG in names and not (has_weights and "config.json" in names)


def total_bytes(folder: Path) -> int:
    """The size of a checkpoint's weight files."""
    return sum(file.stat().st_size for file in weight_files(folder))


def weight_files(folder: Path) -> list[Path]:
    """The shards of the index; without an index, `model.safetensors`, or else every safetensors.

    In open_clip's layout it is `open_clip_model.safetensors`, if there is one.
    """
    if (folder / OPEN_CLIP_SINGLE).exists() and is_open_clip(file_names(folder)):
        files = [folder / OPEN_CLIP_SINGLE]
    elif (folder / INDEX).exists():
        files = [folder / name for name in sorted(set(weight_map(folder / INDEX).values()))]
    elif (folder / SINGLE).exists():  # other files may be an adapter or another model's weights
        files = [folder / SINGLE]
    else:
        files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise _no_weights(folder)
    for file in files:
        if not file.exists():
            raise InvalidCheckpoint(f"{file} is missing", hint="download the model again")
    return files


def file_names(folder: Path) -> set[str]:
    """The names of the files in a folder."""
    return {file.name for file in folder.glob("*") if file.is_file()}


def weight_map(index: Path) -> dict[str, str]:
    """Tensor name to file name, from an index of the weights; all files are in its folder."""
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise InvalidCheckpoint(f"{index} has no weight_map")
    for tensor, file in names.items():
        if not isinstance(file, str) or not SHARD_NAME.fullmatch(file):
            raise InvalidCheckpoint(
                f"{INDEX} maps {tensor} to {file!r}, which is not a file of the folder"
            )
    return names


def _no_weights(folder: Path) -> InvalidCheckpoint:
    message = f"{folder} has no safetensors file"
    for name in sorted(file.name for file in folder.iterdir() if file.suffix in PICKLES):
        return InvalidCheckpoint(
            f"{message}; {name} is a pickle, which can run code",
            hint=f"convert it: {conversion_command(str(folder))}",
        )
    return InvalidCheckpoint(message, hint="download the model again, or name another folder")
