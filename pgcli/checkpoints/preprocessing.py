"""Reads how a checkpoint wants its images prepared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as brief
from typing import Any

from pgcli.checkpoints.json_file import read_json
from pgcli.errors import InvalidCheckpoint


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """How a picture becomes the model's square: Pillow's resampling number, then mean and std."""

    resample: int = 3
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)


def read_preprocessing(folder: Path, resolution: int) -> Preprocessing:
    """How the checkpoint wants its pictures; PaliGemma's own way where it does not say.

    What transformers 5 writes into `processor_config.json` is newer than, and wins over, a
    `preprocessor_config.json` beside it.
    """
    newer, older = folder / "processor_config.json", folder / "preprocessor_config.json"
    values = read_json(newer) if newer.is_file() else {}
    if "image_processor" in values:
        return _read(newer.name, values["image_processor"], resolution)
    return _read(older.name, read_json(older) if older.is_file() else {}, resolution)


def _read(name: str, values: Any, resolution: int) -> Preprocessing:
    if not isinstance(values, dict):
        raise InvalidCheckpoint(f"{name} does not describe how pictures are prepared")

    def insist(key: str, supported: Callable[[Any], bool]) -> Any:
        value = values.get(key)
        if value is not None and not supported(value):
            raise InvalidCheckpoint(f"{name}: {key} = {brief(value)} is not supported")
        return value

    square = {"height": resolution, "width": resolution}
    for key in ("do_resize", "do_rescale", "do_normalize"):
        insist(key, lambda value: value is True)
    for key in ("do_center_crop", "do_pad"):
        insist(key, lambda value: value is False)
    insist("size", lambda size: isinstance(size, dict) and _stated(size) == square)
    insist("rescale_factor", lambda factor: _is_number(factor) and abs(factor - 1 / 255) < 1e-9)
    resample = insist("resample", lambda number: type(number) is int and number in range(6))
    mean = insist("image_mean", _is_colour)
    std = insist("image_std", lambda std: _is_colour(std) and min(std) > 0)
    default = Preprocessing()
    return Preprocessing(
        default.resample if resample is None else resample,
        tuple(mean or default.mean),
        tuple(std or default.std),
    )


def _stated(size: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in size.items() if value is not None}


def _is_colour(value: Any) -> bool:
    """Whether it is a list of one finite number for each of red, green and blue."""
    return isinstance(value, list) and len(value) == 3 and all(map(_is_number, value))


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e9
