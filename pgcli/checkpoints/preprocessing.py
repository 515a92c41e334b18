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
    """How an image is resized and normalized: Pillow's resampling filter, mean and std."""

    resample: int = 3
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)


def read_preprocessing(folder: Path, resolution: int) -> Preprocessing:
    """The checkpoint's preprocessing; PaliGemma's defaults for settings that it does not have.

    `processor_config.json`, which transformers 5 writes, takes precedence over
    `preprocessor_config.json`.
    """
    newer, older = folder / "processor_config.json", folder / "preprocessor_config.json"
    values = read_json(newer) if newer.is_file() else {}
    if "image_processor" in values:
        return _parse(newer.name, values["image_processor"], resolution)
    return _parse(older.name, read_json(older) if older.is_file() else {}, resolution)


def _parse(name: str, values: Any, resolution: int) -> Preprocessing:
    if not isinstance(values, dict):
        raise InvalidCheckpoint(f"{name} does not describe image preprocessing")

    def check(key: str, supported: Callable[[Any], bool]) -> Any:
        value = values.get(key)
        if value is not None and not supported(value):
            raise InvalidCheckpoint(f"{name}: {key} = {brief(value)} is not supported")
        return value

    square = {"height": resolution, "width": resolution}
    for key in ("do_resize", "do_rescale", "do_normalize"):
        check(key, lambda value: value is True)
    for key in ("do_center_crop", "do_pad"):
        check(key, lambda value: value is False)
    check("size", lambda size: isinstance(size, dict) and _without_nulls(size) == square)
    check("rescale_factor", lambda factor: _is_number(factor) and abs(factor - 1 / 255) < 1e-9)
    resample = check("resample", lambda number: type(number) is int and number in range(6))
    mean = check("image_mean", _is_color)
    std = check("image_std", lambda std: _is_color(std) and min(std) > 0)
    default = Preprocessing()
    return Preprocessing(
        default.resample if resample is None else resample,
        tuple(mean or default.mean),
        tuple(std or default.std),
    )


def _without_nulls(size: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in size.items() if value is not None}


def _is_color(value: Any) -> bool:
    """Whether it is a list of three finite numbers: red, green and blue."""
    return isinstance(value, list) and len(value) == 3 and all(map(_is_number, value))


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e9
