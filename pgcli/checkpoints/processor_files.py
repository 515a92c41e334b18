"""Writes and copies the files of a checkpoint that say how images and texts are prepared."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from pgcli.checkpoints.preprocessing import Preprocessing
from pgcli.checkpoints.tower_config import Family

IMAGE_PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json"),
    *("added_tokens.json", "vocab.json", "merges.txt", "spiece.model"),
)
IMAGE_PROCESSORS: dict[Family, str] = {
    "siglip": "SiglipImageProcessor",
    "clip": "CLIPImageProcessor",
    "vit": "ViTImageProcessor",
}


def copy_files(source: Path, folder: Path, names: tuple[str, ...]) -> bool:
    """Copy those files of a checkpoint that it has; return whether it has any."""
    folder.mkdir(parents=True, exist_ok=True)
    found = [name for name in names if (source / name).is_file()]
    for name in found:
        if (source / name).resolve() != (folder / name).resolve():
            shutil.copyfile(source / name, folder / name)
    return bool(found)


def write_image_processor(
    folder: Path, family: Family, resolution: int, preprocessing: Preprocessing
) -> None:
    """Write `preprocessor_config.json`, which `read_preprocessing` reads as the same values."""
    square = {"height": resolution, "width": resolution}
    values: dict[str, Any] = {
        "image_processor_type": IMAGE_PROCESSORS[family],
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
        whole = (
            {"shortest_edge": side} if preprocessing.keeps_aspect else dict.fromkeys(square, side)
        )
        values |= {"size": whole, "do_center_crop": True, "crop_size": square}
    elif family == "clip":
        values["do_center_crop"] = False
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(values, indent=2) + "\n"
    (folder / "preprocessor_config.json").write_text(text, encoding="utf-8")
