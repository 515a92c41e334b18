"""The small JSON files of a checkpoint: sizes and how pictures are prepared."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pgcli.errors import InvalidCheckpoint
from pgcli.model.config import PaliGemmaConfig, read_config

MAX_JSON_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """How a picture becomes the model's square: Pillow's resampling number, then mean and std."""

    resample: int = 3
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file of a checkpoint; InvalidCheckpoint names the file otherwise."""
    try:
        if file.stat().st_size > MAX_JSON_BYTES:
            raise InvalidCheckpoint(f"{file.name} is larger than {MAX_JSON_BYTES} bytes")
        values = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidCheckpoint(
            f"{file.parent} has no {file.name}",
            hint="a checkpoint is a folder in the Hugging Face layout",
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidCheckpoint(f"{file} cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise InvalidCheckpoint(f"{file} holds no JSON object")
    return values


def config(folder: Path) -> PaliGemmaConfig:
    """The model's sizes; InvalidCheckpoint where `config.json` names one that is not supported."""
    try:
        return read_config(read_json(folder / "config.json"))
    except ValueError as error:
        raise InvalidCheckpoint(f"{folder / 'config.json'}: {error}") from error


def preprocessing(folder: Path, resolution: int) -> Preprocessing:
    """How the checkpoint wants its pictures; PaliGemma's own way where it does not say."""
    for name in ("preprocessor_config.json", "processor_config.json"):
        if (folder / name).is_file():
            values = read_json(folder / name)
            return _read(name, values.get("image_processor", values), resolution)
    return Preprocessing()


def _read(name: str, values: Any, resolution: int) -> Preprocessing:
    def refuse(key: str) -> InvalidCheckpoint:
        return InvalidCheckpoint(f"{name}: {key} = {values[key]!r} is not supported")

    if not isinstance(values, dict):
        raise InvalidCheckpoint(f"{name} does not describe how pictures are prepared")
    for key in ("do_resize", "do_rescale", "do_normalize"):
        if values.get(key, True) not in (True, None):
            raise refuse(key)
    size = values.get("size") or {}
    if isinstance(size, dict) and not {size.get("height"), size.get("width")} <= {resolution, None}:
        raise refuse("size")
    if abs((values.get("rescale_factor") or 1 / 255) - 1 / 255) > 1e-9:
        raise refuse("rescale_factor")
    resample = values.get("resample", 3)
    if resample not in range(6):
        raise refuse("resample")
    moments = {}
    for key in ("image_mean", "image_std"):
        moments[key] = values.get(key) or (0.5, 0.5, 0.5)
        if len(moments[key]) != 3 or not all(isinstance(x, int | float) for x in moments[key]):
            raise refuse(key)
    if not all(x > 0 for x in moments["image_std"]):
        raise refuse("image_std")
    return Preprocessing(resample, tuple(moments["image_mean"]), tuple(moments["image_std"]))
