"""Finds the files that hold a checkpoint's weights."""

from __future__ import annotations

import re
from pathlib import Path

from pgcli.checkpoints.conversion import PICKLES, command
from pgcli.checkpoints.json_file import read_json
from pgcli.errors import InvalidCheckpoint

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
SHARD_NAME = re.compile(r"[A-Za-z0-9._-]+\.safetensors")


def total_bytes(folder: Path) -> int:
    """The size of a checkpoint's weight files."""
    return sum(file.stat().st_size for file in weight_files(folder))


def weight_files(folder: Path) -> list[Path]:
    """The files that hold the weights: those the index names, the usual one, or else every one."""
    if (folder / INDEX).exists():
        files = [folder / name for name in sorted(set(weight_map(folder / INDEX).values()))]
    elif (folder / SINGLE).exists():  # beside it there may be an adapter, or weights of another
        files = [folder / SINGLE]
    else:
        files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise _no_weights(folder)
    for file in files:
        if not file.is_file():
            raise InvalidCheckpoint(f"{file} is missing", hint="download the model again")
    return files


def _no_weights(folder: Path) -> InvalidCheckpoint:
    said = f"{folder} has no safetensors file"
    for name in sorted(file.name for file in folder.iterdir() if file.suffix in PICKLES):
        return InvalidCheckpoint(
            f"{said}; {name} is a pickle, which can run code",
            hint=f"convert it: {command(str(folder))}",
        )
    return InvalidCheckpoint(said, hint="download the model again, or name another folder")


def weight_map(index: Path) -> dict[str, str]:
    """Tensor name -> file name, as the index of the weights says; all files lie in its folder."""
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise InvalidCheckpoint(f"{index} has no weight_map")
    for tensor, file in names.items():
        if not isinstance(file, str) or not SHARD_NAME.fullmatch(file):
            raise InvalidCheckpoint(f"{INDEX} sends {tensor} to {file!r}, not a file of the folder")
    return names
