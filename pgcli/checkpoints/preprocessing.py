"""Reads and writes a checkpoint's image preprocessing: `preprocessor_config.json`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from reprlib import repr as brief
from types import MappingProxyType
from typing import Any

from pgcli.checkpoints.families.encoders import FamilyName
from pgcli.checkpoints.files import read_object
from pgcli.errors import InvalidCheckpoint
from pgcli.images import ImageSpec

Color = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """Resizing and normalization of images: Pillow's resampling filter, mean and std.

    With `resize_to`, images are resized to this size and then cropped at the centre; with
    `keeps_aspect` it is the length of the shorter side.
    """

    resample: int = 3
    mean: Color = (0.5, 0.5, 0.5)
    std: Color = (0.5, 0.5, 0.5)
    resize_to: int | None = None
    keeps_aspect: bool = False

    def image_spec(self, resolution: int) -> ImageSpec:
        """How decoding workers prepare images for a model of this resolution."""
        return ImageSpec(
            resolution,
            self.resample,
            resize_to=self.resize_to,
            keeps_aspect=self.keeps_aspect,
        )


@dataclass(frozen=True, slots=True)
class ImageProcessor:
    """The defaults of one of transformers' image processors."""

    preprocessing: Preprocessing
    size: Mapping[str, int]
    crop: int | None = None
    int_is_square: bool = True


SIDES = ("height", "width")
_SQUARE = MappingProxyType({"height": 224, "width": 224})
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
PROCESSORS: Mapping[str, ImageProcessor] = MappingProxyType(
    {
        "Siglip": ImageProcessor(Preprocessing(), _SQUARE, int_is_square=False),
        "CLIP": ImageProcessor(
            Preprocessing(3, CLIP_MEAN, CLIP_STD),
            MappingProxyType({"shortest_edge": 224}),
            crop=224,
            int_is_square=False,
        ),
        "ViT": ImageProcessor(Preprocessing(2), _SQUARE),
        "Gemma3": ImageProcessor(Preprocessing(2), _SQUARE, int_is_square=False),
        "DeiT": ImageProcessor(
            Preprocessing(3), MappingProxyType({"height": 256, "width": 256}), crop=224
        ),
    }
)
#: The default processor of a family.
DEFAULT_PROCESSOR = MappingProxyType(
    {"siglip": "Siglip", "clip": "CLIP", "vit": "ViT", "gemma3": "Gemma3"}
)


def read_preprocessing(folder: Path, resolution: int, family: str | None = None) -> Preprocessing:
    """The checkpoint's preprocessing, with its image processor's defaults for missing settings.

    Without a file, the defaults of its family at the model's resolution. `processor_config.json`,
    which transformers 5 writes, takes precedence over `preprocessor_config.json`. `family` None is
    PaliGemma, which always resizes images to squares.
    """
    newer, older = folder / "processor_config.json", folder / "preprocessor_config.json"
    values = read_object(newer) if newer.is_file() else {}
    if "image_processor" in values:
        return _parse(newer.name, values["image_processor"], resolution, family)
    if older.is_file():
        return _parse(older.name, read_object(older), resolution, family)
    processor = PROCESSORS[DEFAULT_PROCESSOR[family or "siglip"]]
    crops = processor.crop is not None
    return replace(
        processor.preprocessing, resize_to=resolution if crops else None, keeps_aspect=crops
    )


class _Settings:
    """The settings in an image processor's file; unsupported values are errors."""

    def __init__(self, name: str, values: Any):
        if not isinstance(values, dict):
            raise InvalidCheckpoint(f"{name} does not describe image preprocessing")
        self.name, self.values = name, values

    def get(self, key: str, supported: Callable[[Any], bool]) -> Any:
        """The value; None if it is absent or null."""
        value = self.values.get(key)
        if value is not None and not supported(value):
            raise InvalidCheckpoint(f"{self.name}: {key} = {brief(value)} is not supported")
        return value

    def check_side(self, key: str, size: Any, side: int) -> None:
        """Raise InvalidCheckpoint for a `size` other than the square of the model's resolution."""
        if size == {"height": side, "width": side}:
            return
        stated = brief(size)
        if isinstance(size, dict) and size.keys() == {*SIDES}:
            stated = f"{brief(size['height'])} x {brief(size['width'])}"
        raise InvalidCheckpoint(
            f"{self.name}: {key} is {stated}, but the model's resolution is {side} x {side}",
            hint="the file belongs to another checkpoint: replace it with the model's own, or "
            f"delete it to use the defaults of this kind of model at {side} x {side}",
        )


def _parse(name: str, values: Any, resolution: int, family: str | None) -> Preprocessing:
    settings = _Settings(name, values)
    processor = _processor(settings, family)
    for key in ("do_resize", "do_rescale"):
        settings.get(key, lambda value: value is True)
    settings.get("do_pan_and_scan", lambda value: value is False)
    settings.get("do_pad", lambda value: value is False)
    settings.get("rescale_factor", lambda value: _is_number(value) and abs(value - 1 / 255) < 1e-9)
    preprocessing = _normalization(settings, processor.preprocessing, may_be_off=family is not None)
    crops = settings.get(
        "do_center_crop", lambda value: value is False or (value is True and family is not None)
    )
    if (processor.crop is not None) if crops is None else crops:
        side, keeps_aspect = _size_before_crop(settings, processor, resolution)
        return replace(preprocessing, resize_to=side, keeps_aspect=keeps_aspect)
    size = values.get("size")
    if size is not None:
        settings.check_side("size", _sides(size, processor), resolution)
    elif family is not None:
        settings.check_side("its default size", dict(processor.size), resolution)
    return preprocessing


def _normalization(
    settings: _Settings, default: Preprocessing, *, may_be_off: bool
) -> Preprocessing:
    """The default with the file's filter, mean and std; mean 0 and std 1 if it is off."""
    is_on = settings.get(
        "do_normalize", lambda value: value is True or (value is False and may_be_off)
    )
    resample = settings.get("resample", lambda number: type(number) is int and number in range(6))
    mean = settings.get("image_mean", _is_color)
    std = settings.get("image_std", lambda std: _is_color(std) and min(std) > 0)
    if is_on is False:
        mean, std = (0.0,) * 3, (1.0,) * 3
    return Preprocessing(
        default.resample if resample is None else resample,
        tuple(mean or default.mean),
        tuple(std or default.std),
    )


def _size_before_crop(
    settings: _Settings, processor: ImageProcessor, resolution: int
) -> tuple[int, bool]:
    """The side that images are resized to before the crop, and whether it is the shorter one."""
    crop = settings.values.get("crop_size")
    side = processor.crop if crop is None else _square_side(crop)
    key = "its default crop_size" if crop is None else "crop_size"
    settings.check_side(key, crop if side is None else dict.fromkeys(SIDES, side), resolution)
    size = settings.values.get("size")
    sides = _sides(size or dict(processor.size), processor)
    side = sides.get("shortest_edge", sides.get("height", 0))
    if sides not in ({"shortest_edge": side}, {"height": side, "width": side}) or not (
        type(side) is int and resolution <= side <= 8192
    ):
        raise InvalidCheckpoint(f"{settings.name}: size = {brief(size)} is not supported")
    return side, "shortest_edge" in sides


def _processor(settings: _Settings, family: str | None) -> ImageProcessor:
    """The image processor that a file names. Raises InvalidCheckpoint for an unknown one."""
    if family is None:
        return PROCESSORS["Siglip"]
    values = settings.values
    type_name = values.get("image_processor_type") or values.get("feature_extractor_type")
    stem = re.sub(r"(ImageProcessor(Fast|Pil)?|FeatureExtractor)$", "", str(type_name or ""))
    processor = PROCESSORS.get(stem if type_name else DEFAULT_PROCESSOR[family])
    if processor is None:
        raise InvalidCheckpoint(
            f"{settings.name} names {brief(type_name)}, an image processor that is not supported",
            hint=f"supported image processors: {', '.join(PROCESSORS)}",
        )
    return processor


def _sides(size: Any, processor: ImageProcessor) -> dict[str, Any]:
    """A size as a mapping; in older files one number is a square, or the shorter side."""
    if type(size) is int:
        is_square = processor.int_is_square
        return {"height": size, "width": size} if is_square else {"shortest_edge": size}
    if not isinstance(size, dict):
        return {}
    return {key: value for key, value in size.items() if value is not None}


def _square_side(size: Any) -> Any:
    """The side of a square given as one number or as height and width; None for others."""
    if isinstance(size, dict):
        height = size.get("height")
        return height if size == {"height": height, "width": height} else None
    return size if type(size) is int else None


def _is_color(value: Any) -> bool:
    """Whether it is a list of three finite numbers: red, green and blue."""
    return isinstance(value, list) and len(value) == 3 and all(map(_is_number, value))


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e9


def write_image_processor(
    folder: Path, family: FamilyName, resolution: int, preprocessing: Preprocessing
) -> None:
    """Write `preprocessor_config.json`, which `read_preprocessing` reads as the same values."""
    square = {"height": resolution, "width": resolution}
    values: dict[str, Any] = {
        "image_processor_type": f"{DEFAULT_PROCESSOR[family]}ImageProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "do_rescale": True,
        "do_normalize": True,
        "size": square,
        "resample": preprocessing.resample,
        "rescale_factor": 1 / 255,
        "image_mean": list(preprocessing.mean),
        "image_std": list(preprocessing.std),
    }
    if family == "siglip":
        values["processor_class"] = "SiglipProcessor"
    if preprocessing.resize_to is not None:
        side = preprocessing.resize_to
        size = (
            {"shortest_edge": side} if preprocessing.keeps_aspect else dict.fromkeys(square, side)
        )
        values |= {"size": size, "do_center_crop": True, "crop_size": square}
    elif family == "clip":
        values["do_center_crop"] = False
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(values, indent=2) + "\n"
    (folder / "preprocessor_config.json").write_text(text, encoding="utf-8")
