"""Images get the same pixels as from transformers' Pillow image processors."""

import json
import sys
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from pgcli.checkpoints.preprocessing import read_preprocessing
from pgcli.errors import InvalidCheckpoint
from pgcli.images import ImageLimits, ImageSpec, decode
from pgcli.images.decode import encode_image
from pgcli.model.siglip import normalize_pixels
from pgcli.records import Item

SIDE = 32
SQUARE = {"height": SIDE, "width": SIDE}
PROCESSORS = {
    "siglip": transformers.SiglipImageProcessorPil(size=SQUARE),
    "siglip of bilinear": transformers.SiglipImageProcessorPil(size=SQUARE, resample=2),
    "clip": transformers.CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size=SQUARE),
    "clip of larger": transformers.CLIPImageProcessorPil(
        size={"shortest_edge": 41}, crop_size=SQUARE
    ),
    "vit": transformers.ViTImageProcessorPil(size=SQUARE),
    "vit of other colours": transformers.ViTImageProcessorPil(
        size=SQUARE, resample=3, image_mean=[0.4, 0.5, 0.6], image_std=[0.2, 0.3, 0.4]
    ),
    "vit without normalization": transformers.ViTImageProcessorPil(size=SQUARE, do_normalize=False),
    "deit": transformers.DeiTImageProcessorPil(size={"height": 41, "width": 41}, crop_size=SQUARE),
}
SIZES = [(32, 32), (33, 90), (90, 33), (500, 31), (29, 29), (640, 481), (1, 7)]


def image(size: tuple[int, int]) -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), np.uint8)
    return Image.fromarray(pixels)


@pytest.mark.parametrize("name", PROCESSORS)
def test_pixels_equal_transformers_bit_for_bit(tmp_path, name):
    processor = PROCESSORS[name]
    processor.save_pretrained(tmp_path)
    family = name.partition(" ")[0].replace("deit", "vit")
    preprocessing = read_preprocessing(tmp_path, SIDE, family)
    spec = preprocessing.image_spec(SIDE)
    for size in SIZES:
        given = image(size)
        found = decode(Item(0, "", "", data=encode_image(given)), spec, ImageLimits()).pixels
        raw = processor(given, do_rescale=False, do_normalize=False)["pixel_values"][0]
        assert np.array_equal(found, np.moveaxis(np.asarray(raw), 0, -1)), size
        mean, std = torch.tensor(preprocessing.mean), torch.tensor(preprocessing.std)
        (normalized,) = normalize_pixels(torch.from_numpy(found)[None], mean, std, torch.float32)
        np.testing.assert_allclose(normalized, processor(given)["pixel_values"][0], atol=1e-6)


def test_fast_decode_crops_the_same_part(tmp_path):
    PROCESSORS["clip"].save_pretrained(tmp_path)
    spec = read_preprocessing(tmp_path, SIDE, "clip").image_spec(SIDE)
    file = BytesIO()
    smooth = image((4, 3)).resize((640, 480), Image.Resampling.BICUBIC)
    smooth.save(file, "JPEG", quality=95)
    item = Item(0, "", "", data=file.getvalue())
    full, fast = (
        decode(item, replace(spec, fast_decode=is_fast), ImageLimits()).pixels
        for is_fast in (False, True)
    )
    assert 0 < np.abs(full.astype(int) - fast).mean() < 0.5


def test_extremely_elongated_image_takes_little_memory():
    """With a shorter side of 32 pixels, it would have 2**30 of them."""
    spec = ImageSpec(SIDE, resize_to=SIDE, keeps_aspect=True)
    greys = np.repeat(np.arange(256, dtype=np.uint8), 2**12)[:, None]
    line = Image.fromarray(greys)
    for given in (line, line.transpose(Image.Transpose.ROTATE_90)):
        data = encode_image(given)
        found = decode(Item(0, "", "", data=data), spec, ImageLimits()).pixels
        assert found.shape == (SIDE, SIDE, 3)
        assert set(np.unique(found)) <= {127, 128}


def test_crop_of_a_long_image_equals_the_full_resize(monkeypatch):
    spec = ImageSpec(SIDE, resize_to=41, keeps_aspect=True)
    whole = np.asarray(spec.resize(image((97, 1203)))).astype(int)
    monkeypatch.setattr(sys.modules[ImageSpec.__module__], "MAX_RESIZED", 1)
    part = np.asarray(spec.resize(image((97, 1203))))
    assert np.abs(whole - part).max() <= 1


def write(folder: Path, **values: Any) -> Path:
    (folder / "preprocessor_config.json").write_text(json.dumps(values))
    return folder


@pytest.mark.parametrize(
    ("family", "values"),
    [
        ("clip", {"size": 32, "crop_size": 32, "feature_extractor_type": "CLIPFeatureExtractor"}),
        ("vit", {"size": 32, "image_processor_type": "ViTFeatureExtractor"}),
        ("siglip", {"size": SQUARE, "image_processor_type": "SiglipImageProcessorFast"}),
        ("clip", {"size": {"shortest_edge": 32, "longest_edge": None}, "crop_size": SQUARE}),
    ],
)
def test_settings_of_earlier_versions_are_read(tmp_path, family, values):
    preprocessing = read_preprocessing(write(tmp_path, **values), SIDE, family)
    assert preprocessing.keeps_aspect == (family == "clip")


@pytest.mark.parametrize("family", ["siglip", "clip", "vit"])
def test_without_a_file_images_have_the_models_resolution(tmp_path, family):
    spec = read_preprocessing(tmp_path, 48, family).image_spec(48)
    assert spec.resized(60, 120) == ((48, 96) if family == "clip" else (48, 48))
    assert spec.resample == (2 if family == "vit" else 3)


@pytest.mark.parametrize(
    ("family", "values", "message"),
    [
        ("vit", {"image_processor_type": "BitImageProcessor"}, "'BitImageProcessor', an image pro"),
        ("vit", {"size": {"height": 32, "width": 64}}, "size is 32 x 64, but the model's"),
        ("vit", {"size": {"shortest_edge": 32}}, "size is {'shortest_edge': 32}, but"),
        ("vit", {"size": SQUARE, "do_resize": False}, "do_resize = False"),
        (
            "clip",
            {"size": 32, "crop_size": 48},
            "crop_size is 48 x 48, but the model's resolution is 32 x 32",
        ),
        ("clip", {"size": 24, "crop_size": 32}, "size = 24"),
        ("clip", {"size": {"shortest_edge": 32, "longest_edge": 64}, "crop_size": 32}, "size = "),
        ("clip", {}, "default crop_size is 224 x 224, but the model's resolution is 32"),
        ("siglip", {}, "default size is 224 x 224, but the model's resolution is 32"),
        ("siglip", {"size": SQUARE, "do_normalize": "no"}, "do_normalize = 'no'"),
        ("clip", {"size": 32, "crop_size": 32, "do_center_crop": "yes"}, "do_center_crop = 'yes'"),
    ],
)
def test_unsupported_preprocessing_is_named(tmp_path, family, values, message):
    with pytest.raises(InvalidCheckpoint, match=message):
        read_preprocessing(write(tmp_path, **values), SIDE, family)
