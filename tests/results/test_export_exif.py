"""Tests `pgcli export`: copies of images with an EXIF orientation are upright."""

import io

import numpy
import pytest
from PIL import Image, ImageOps

from pgcli.results.exports.files import upright_file
from tests.support.exporting import exported, row, saved

SIZE = (48, 32)


def photograph(format_: str, orientation: int = 1, mode: str = "RGB", **options: object) -> bytes:
    """An image with a bright left third and a grey lowest quarter, with an EXIF orientation."""
    pixels = numpy.zeros(SIZE[::-1], numpy.uint8)
    pixels[24:] = 128
    pixels[:, :16] = 255
    file, exif = io.BytesIO(), Image.Exif()
    exif[0x0112], exif[0x010F] = orientation, "a maker"
    Image.fromarray(pixels).convert(mode).save(file, format_, exif=exif, **options)
    return file.getvalue()


def seen(data: bytes) -> numpy.ndarray:
    """The pixels with the EXIF orientation applied."""
    with Image.open(io.BytesIO(data)) as image:
        return numpy.asarray(ImageOps.exif_transpose(image).convert("L")).astype(int)


def stored(data: bytes) -> numpy.ndarray:
    """The pixels without the EXIF orientation, which Pillow always applies to TIFF."""
    with Image.open(io.BytesIO(data)) as image:
        assert image.getexif().get(0x0112, 1) == 1
        return numpy.asarray(image.convert("L")).astype(int)


@pytest.mark.parametrize("orientation", range(2, 9))
@pytest.mark.parametrize("format_", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
def test_rotated_image_is_stored_upright(format_, orientation):
    data = photograph(format_, orientation)
    upright = upright_file(data)
    off = numpy.abs(stored(upright) - seen(data)).max()
    assert off <= {"JPEG": 12, "AVIF": 12}.get(format_, 0)
    with Image.open(io.BytesIO(upright)) as image:
        assert image.format == format_
        if format_ in ("JPEG", "PNG", "WEBP"):
            assert image.getexif()[0x010F] == "a maker"
    assert upright_file(upright) is None


@pytest.mark.parametrize("orientation", [0, 1, 9])
@pytest.mark.parametrize("format_", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
def test_upright_image_is_not_changed(format_, orientation):
    assert upright_file(photograph(format_, orientation)) is None


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "I;16", "1", "P"])
def test_rotated_png_keeps_its_mode(mode):
    upright = upright_file(photograph("PNG", 6, mode))
    with Image.open(io.BytesIO(upright)) as image:
        assert (image.mode, image.size) == (mode, SIZE[::-1])


def test_damaged_rotated_image_is_skipped_and_reported(cli, tmp_path):
    data = photograph("JPEG", 6)
    (tmp_path / "a.jpg").write_bytes(data[: len(data) - 100])
    known = {"id": "a.jpg", "image": str(tmp_path / "a.jpg"), "width": 32, "height": 48}
    file = saved(tmp_path / "r.jsonl", [row(0, task="detect", **known)])
    code, err = exported(cli, file, "yolo", tmp_path / "out", "--store-images", "copy")
    assert code == 3
    assert "1 image that cannot be read skipped" in err
