"""How images are prepared for a model, which is known before the model is loaded."""

from __future__ import annotations

from pathlib import Path

from pgcli.checkpoints.model_description import image_preprocessing, read_description
from pgcli.checkpoints.preprocessing import Preprocessing
from pgcli.images import ImageSpec


def read_image_spec(folder: Path) -> ImageSpec:
    """How decoding workers prepare images for the model of a checkpoint.

    Raises InvalidCheckpoint.
    """
    description = read_description(folder)
    preprocessing = image_preprocessing(folder, description)
    return image_spec(description.vision.resolution, preprocessing)


def image_spec(resolution: int, preprocessing: Preprocessing) -> ImageSpec:
    """How decoding workers prepare images for the model."""
    return ImageSpec(
        resolution,
        preprocessing.resample,
        resize_to=preprocessing.resize_to,
        keeps_aspect=preprocessing.keeps_aspect,
        rounds_margin=preprocessing.rounds_margin,
    )
