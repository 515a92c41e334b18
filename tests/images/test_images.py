"""Images are decoded upright, in RGB, at the model's resolution; a bad file gives an error row."""

import io
import os
import stat
import struct
import subprocess
import sys
import threading
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import EpsImagePlugin, Image, ImageCms
from PIL.JpegImagePlugin import JpegImageFile

from pgcli.images import (
    ImageLimits,
    ImageSpec,
    decode,
    files,
    load_image,
)
from pgcli.images.formats import READERS
from pgcli.inputs import Inventory
from pgcli.records import DecodedImage, Item
from tests.support import awkward
from tests.support.awkward import drawing, encoded, noisy, png
from tests.support.runs import ends_soon, processor_time_below

LIMITS = ImageLimits()
EXACT = ImageSpec(28)
FAST = ImageSpec(28, fast_decode=True)


def decode_source(
    source: str | Path | bytes, spec: ImageSpec = EXACT, limits: ImageLimits = LIMITS
) -> DecodedImage:
    if isinstance(source, bytes):
        return decode(Item(0, "0", "bytes", data=source), spec, limits)
    return decode(Item(0, "0", str(source), str(source)), spec, limits)


def code(source: str | Path | bytes, limits: ImageLimits = LIMITS) -> str | None:
    fault = decode_source(source, limits=limits).fault
    return fault.code if fault else None


def pixels_of(data: bytes) -> np.ndarray:
    return np.asarray(load_image(data, LIMITS))


@pytest.mark.parametrize("spec", [EXACT, FAST], ids=["exact", "fast"])
def test_every_awkward_file_has_its_expected_result(spec, tmp_path):
    fates = awkward.make(tmp_path)
    assert len(fates) >= 40
    found = {}
    for item in Inventory.scan([str(tmp_path)]):
        decoded = decode(item, spec, LIMITS)
        name = os.path.relpath(item.path, tmp_path)
        found[name] = decoded.fault.code if decoded.fault else None
        assert (decoded.pixels is None) == (decoded.fault is not None)
        assert item.id.encode()
        if decoded.fault:
            assert decoded.fault.message.endswith(".")
            assert decoded.fault.message.isprintable()
    assert found == fates


def display_p3() -> bytes:
    """The Display P3 profile of phones: the sRGB profile with wider primaries."""
    primaries = {
        b"rXYZ": (0.5151, 0.2412, -0.0011),
        b"gXYZ": (0.2919, 0.6922, 0.0419),
        b"bXYZ": (0.1572, 0.0666, 0.7841),
    }
    profile = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    for name, values in primaries.items():
        (start,) = struct.unpack_from(">I", profile, profile.index(name) + 4)
        struct.pack_into(">3i", profile, start + 8, *(round(value * 65536) for value in values))
    return bytes(profile)


MODES = {
    "JPEG": ("RGB", "L", "CMYK"),
    "PNG": ("RGB", "L", "1", "P", "RGBA", "LA", "I;16"),
    "WEBP": ("RGB", "RGBA"),
    "GIF": ("L", "P"),
    "BMP": ("RGB", "L", "1", "P"),
    "TIFF": ("RGB", "L", "1", "P", "RGBA", "CMYK", "I;16"),
    "AVIF": ("RGB", "RGBA"),
    "PPM": ("RGB", "L", "1"),
}
assert MODES.keys() == set(READERS)


@settings(max_examples=300)
@given(
    st.sampled_from([(format_, mode) for format_, modes in MODES.items() for mode in modes]),
    st.tuples(st.integers(1, 120), st.integers(1, 120)),
    st.integers(1, 8),
    st.integers(0, 2**32 - 1),
)
def test_pixels_are_the_upright_rgb_image_resized(kind, size, orientation, seed):
    format_, mode = kind
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"exif": exif} if format_ in ("JPEG", "PNG", "WEBP", "TIFF", "AVIF") else {}
    data = encoded(noise(*size, seed, mode), format_, **options)
    whole = load_image(data, LIMITS)
    assert whole.mode == "RGB"
    decoded = decode_source(data)
    assert (decoded.pixels.dtype, decoded.pixels.flags.c_contiguous) == (np.uint8, True)
    assert (decoded.width, decoded.height) == whole.size
    expected = np.asarray(whole.resize((28, 28), Image.Resampling.BICUBIC))
    assert np.array_equal(decoded.pixels, expected)


def noise(width: int, height: int, seed: int, mode: str = "RGB") -> Image.Image:
    random = np.random.default_rng(seed)
    if mode == "I;16":
        values = random.integers(0, 65536, (height, width), dtype=np.uint16)
        values[0, 0] = 65535  # a TIFF with values of 12 bits is refused
        return Image.fromarray(values)
    image = Image.fromarray(random.integers(0, 256, (height, width, 4), dtype=np.uint8))
    return image if mode == "RGBA" else image.convert("RGB").convert(mode)


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("size", [(113, 480), (400, 301), (225, 451)])
def test_fast_decode_gives_nearly_the_same_pixels(mode, orientation, size):
    exif = Image.Exif()
    exif[0x0112] = orientation
    smooth = noise(6, 6, seed=1).resize(size, Image.Resampling.BICUBIC)
    data = encoded(smooth.convert(mode), "JPEG", exif=exif, quality=95)
    exact, fast = decode_source(data), decode_source(data, FAST)
    assert (fast.width, fast.height) == (exact.width, exact.height)
    assert fast.pixels.dtype == np.uint8
    assert fast.pixels.shape == (28, 28, 3)
    apart = np.abs(fast.pixels.astype(int) - exact.pixels)
    assert 0 < apart.max() <= 2
    assert apart.mean() < 0.3


def test_fast_decode_keeps_twice_the_models_pixels(monkeypatch):
    decoded = set()
    load = JpegImageFile.load

    def note(image: JpegImageFile) -> object:
        decoded.add(image.size)
        return load(image)

    monkeypatch.setattr(JpegImageFile, "load", note)
    for height, size in {448: (58, 56), 447: (114, 112), 112: (61, 56), 111: (120, 111)}.items():
        decoded.clear()
        decode_source(encoded(drawing(height + 9, height), "JPEG"), FAST)
        assert decoded == {size}


@pytest.mark.parametrize("mode", ["RGB", "L", "1", "P", "RGBA", "LA", "PA", "CMYK"])
def test_decoded_pixels_equal_transformers(mode):
    siglip = pytest.importorskip("transformers.models.siglip.image_processing_pil_siglip")
    rgba = drawing(61, 47).convert("RGBA")
    rgba.putalpha(Image.linear_gradient("L").resize(rgba.size))
    image = rgba.convert(mode) if mode != "P" else rgba.convert("RGB").quantize(32)
    format_ = "TIFF" if mode in ("CMYK", "PA") else "PNG"
    data = encoded(image if mode != "PA" else rgba, format_)
    processor = siglip.SiglipImageProcessorPil(size={"height": 28, "width": 28})
    expected = processor(Image.open(io.BytesIO(data)), do_rescale=False, do_normalize=False)
    pixels = decode_source(data).pixels
    assert np.array_equal(pixels.transpose(2, 0, 1), expected["pixel_values"][0])


@pytest.mark.parametrize("format_", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(format_, orientation):
    corners = Image.new("RGB", (48, 32), "white")
    corners.paste("red", (0, 0, 24, 16))
    corners.paste("blue", (24, 16, 48, 32))
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if format_ == "WEBP" else {"quality": 95}
    data = encoded(corners, format_, exif=exif, **options)
    red, blue = {
        1: (0, 3),
        2: (1, 2),
        3: (3, 0),
        4: (2, 1),
        5: (0, 3),
        6: (1, 2),
        7: (3, 0),
        8: (2, 1),
    }[orientation]
    decoded, turned = decode_source(data), load_image(data, LIMITS)
    assert (decoded.width, decoded.height) == turned.size
    assert turned.size == ((48, 32) if orientation <= 4 else (32, 48))
    width, height = turned.size
    points = [(x * width // 4, y * height // 4) for y in (1, 3) for x in (1, 3)]
    quarters = [turned.getpixel(point) for point in points]
    assert quarters[red][0] > 200 > 100 > quarters[red][2]
    assert quarters[blue][2] > 200 > 100 > quarters[blue][0]


@pytest.mark.parametrize("orientation", [0, 9, 99, 65535])
@pytest.mark.parametrize("format_", ["JPEG", "PNG", "WEBP"])
def test_invalid_orientation_is_ignored(format_, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    odd, plain = (decode_source(encoded(drawing(), format_, exif=of)).pixels for of in (exif, b""))
    assert odd is not None
    assert np.array_equal(odd, plain)


@pytest.mark.parametrize("format_", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("profile", [display_p3(), display_p3()[:200], b"nonsense"])
def test_colour_profile_does_not_change_pixels(format_, profile):
    tagged = encoded(drawing(), format_, icc_profile=profile)
    assert profile in tagged or format_ == "PNG"  # PNG compresses it
    assert np.array_equal(pixels_of(tagged), pixels_of(encoded(drawing(), format_)))


def test_ycck_jpeg_is_read_as_cmyk():
    # Pillow does not write YCCK: this is CMYK with the Adobe marker of YCCK
    stored = Image.merge("CMYK", [Image.new("L", (16, 16), of) for of in (76, 85, 255, 0)])
    plain = encoded(stored, "JPEG", quality=100)
    marker = plain.index(b"Adobe") + 11
    assert plain[marker] == 0
    ycck = plain[:marker] + b"\2" + plain[marker + 1 :]
    assert pixels_of(plain)[8, 8].tolist() == [179, 170, 0]
    assert pixels_of(ycck)[8, 8].tolist() == [255, 0, 2]


def test_size_is_upright_even_if_decoding_fails():
    exif = Image.Exif()
    exif[0x0112] = 6
    whole = encoded(drawing(400, 300), "JPEG", exif=exif)
    decoded = decode_source(whole[: len(whole) * 3 // 4])
    assert (decoded.fault.code, decoded.width, decoded.height) == ("truncated", 300, 400)


def test_transparent_pixels_are_white():
    clear = Image.new("RGBA", (8, 8), (255, 0, 0, 0))
    half = Image.new("LA", (8, 8), (0, 128))
    keyed = Image.new("RGB", (8, 8), "red")
    assert (pixels_of(encoded(clear, "PNG")) == 255).all()
    assert (pixels_of(encoded(half, "PNG")) == 127).all()
    assert (pixels_of(encoded(keyed, "PNG", transparency=(255, 0, 0))) == 255).all()
    assert (pixels_of(encoded(keyed.convert("P"), "GIF", transparency=0)) == 255).any()


@pytest.mark.parametrize("format_", ["PNG", "TIFF", "PPM"])
def test_16_bit_grey_is_scaled_and_not_clipped(format_):
    values = np.linspace(0, 65535, 64 * 64).astype(np.uint16).reshape(64, 64)
    grey = pixels_of(encoded(Image.fromarray(values), format_))[..., 0]
    assert np.array_equal(grey, np.rint(values / 257).astype(np.uint8))


def test_transparent_16_bit_grey_is_white():
    image = Image.fromarray(np.array([[0, 300, 65535]], np.uint16))
    data = encoded(image, "PNG", transparency=300)
    assert pixels_of(data)[0, :, 0].tolist() == [0, 255, 255]


def test_only_the_first_frame_is_decoded():
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue", "green")]
    for format_ in ("GIF", "WEBP", "PNG", "TIFF"):
        data = encoded(frames[0], format_, save_all=True, append_images=frames[1:])
        assert pixels_of(data)[0, 0, 0] > 200, format_


@pytest.mark.parametrize("format_", ["GIF", "WEBP", "PNG"])
def test_more_frames_take_no_more_time(format_):
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")] * 5000
    options = {"lossless": True} if format_ == "WEBP" else {}
    film = encoded(frames[0], format_, save_all=True, append_images=frames[1:], **options)
    with Image.open(io.BytesIO(film)) as opened:
        assert opened.n_frames == 10_000
    with processor_time_below(3):  # all frames take five seconds
        assert decode_source(film).pixels[0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize("format_", [format_ for format_ in READERS if format_ != "AVIF"])
@pytest.mark.parametrize("size", [(1, 1), (1, 16_383), (16_383, 1)])
def test_one_pixel_wide_image_is_decoded(format_, size):
    data = encoded(Image.new("RGB", size, "red"), format_)
    for spec in (EXACT, FAST):
        decoded = decode_source(data, spec)
        assert decoded.fault is None
        assert (decoded.width, decoded.height) == size
        assert decoded.pixels.min() >= 0
        assert decoded.pixels[..., 0].min() > 250


def strange_tiffs() -> dict[str, tuple[bytes, str | None]]:
    """TIFFs with malformed pages and tags or random pixels, and their expected error codes."""
    grey, rubbish = bytes(100), np.random.default_rng(0).bytes(100)
    plain = awkward.tiff(10, 10, data=grey, next_=222)
    assert len(plain) == 222
    pages = np.zeros(10**6, [("count", "<u2"), ("tag", "<u2,<u2,<u4,<u4"), ("next", "<u4")])
    pages["count"], pages["tag"] = 1, (256, 4, 1, 10)
    pages["next"] = 222 + pages.itemsize * np.arange(1, 10**6 + 1)
    endless = tuple((1000 + n, 4, 2**30, 8) for n in range(2000))
    whole = tuple((1000 + n, 2, 2**20, 8) for n in range(2000))
    kinds = {"lzw": 5, "deflate": 8, "jpeg": 7}
    return {
        "million pages": (plain + pages.tobytes(), None),
        "ring": (awkward.tiff(10, 10, data=grey, next_=8), None),
        "tags longer than the file": (awkward.tiff(10, 10, more=endless, data=grey), None),
        "tags upon tags": (awkward.tiff(10, 10, more=whole, data=bytes(2**20)), None),
        "no pixels": (awkward.tiff(9000, 9000, data=grey), "truncated"),
        "many channels": (
            awkward.tiff(10, 10, more=((277, 3, 1, 65535),), data=grey),
            "decode_failed",
        ),
    } | {
        name: (awkward.tiff(10, 10, more=((259, 3, 1, kind),), data=rubbish), "decode_failed")
        for name, kind in kinds.items()
    }


@pytest.mark.filterwarnings("ignore:Tag data larger")
@pytest.mark.parametrize("name", strange_tiffs())
def test_malformed_tiff_fails_quickly(name):
    data, fate = strange_tiffs()[name]
    with processor_time_below(80):
        assert code(data) == fate


def test_no_image_starts_another_program(tmp_path, monkeypatch):
    ghostscript = tmp_path / "gs"
    ghostscript.write_text(f"#!/bin/sh\ntouch {tmp_path}/called\n")
    ghostscript.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n"
    boxed = b"\xc5\xd0\xd3\xc6" + struct.pack("<II", 30, len(eps)) + bytes(18) + eps
    for data in (eps, boxed, eps.replace(b" EPSF-3.0", b"")):
        assert code(data) == "unsupported_format"
        assert not (tmp_path / "called").exists()
    with pytest.raises(OSError), Image.open(io.BytesIO(eps)) as opened:  # noqa: PT011
        opened.load()
    assert (tmp_path / "called").exists(), "nothing starts this program anyway"


def test_pixel_limit_of_pillow_does_not_apply():
    few = ImageLimits(max_pixels=40 * 30 - 1)
    decoded = decode_source(encoded(drawing(40, 30), "PNG"), limits=few)
    assert (decoded.fault.code, decoded.width, decoded.height) == ("too_many_pixels", 40, 30)
    assert "--max-pixels" in decoded.fault.message
    wide = png(14_000, 14_000, idat=zlib.compress(b"\0" * (14_000 * 1751), 1))
    assert code(wide) == "too_many_pixels"
    assert code(wide, ImageLimits(max_pixels=10**9)) is None


@pytest.mark.parametrize(
    "bomb",
    [
        png(50_000, 50_000),
        png(13_000, 13_000),
        awkward.gif(65535, 65535),
        awkward.gif(10, 10, frame=(65535, 65535)),
        awkward.bmp(2**31 - 1, 2**31 - 1),
        awkward.tiff(2**16 - 1, 2**16 - 1),
        b"P6 65535 65535 255 ",
    ],
    ids=["png", "warned", "gif", "frame", "bmp", "tiff", "ppm"],
)
def test_bomb_is_rejected_by_its_header(bomb):
    with processor_time_below(2):
        assert code(bomb) == "too_many_pixels"


@pytest.mark.parametrize("kind", ["iCCP", "iTXt", "zTXt"])
def test_file_that_unpacks_to_gigabytes_is_not_unpacked(kind):
    between = {"iCCP": b"\0\0", "iTXt": b"\0\1\0\0\0", "zTXt": b"\0\0"}[kind]
    packed = zlib.compress(bytes(200 * 2**20), 1)
    whole = encoded(drawing(), "PNG")
    bomb = whole[:33] + awkward.chunk(kind.encode(), b"x" + between + packed) + whole[33:]
    tracemalloc.start()
    try:
        assert code(bomb) == "decode_failed"
        assert tracemalloc.get_traced_memory()[1] < 64 * 2**20
    finally:
        tracemalloc.stop()


def test_pipe_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "x.jpg")
    os.mknod(tmp_path / "socket.jpg", stat.S_IFSOCK | 0o600)
    with ends_soon():
        assert code(tmp_path / "x.jpg") == "not_a_regular_file"
        assert code(tmp_path / "socket.jpg") == "not_a_regular_file"
        assert code("/dev/zero") == code("/dev/null") == "not_a_regular_file"
        assert code(tmp_path) == "not_a_regular_file"


def test_file_replaced_by_a_pipe_does_not_block(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "x.jpg")
    (tmp_path / "before.jpg").write_bytes(b"x")
    before = (tmp_path / "before.jpg").stat()
    monkeypatch.setattr(Path, "stat", lambda _: before)
    found: list[str | None] = []
    reading = threading.Thread(target=lambda: found.append(code(tmp_path / "x.jpg")), daemon=True)
    reading.start()
    reading.join(5)
    assert found == ["not_a_regular_file"]


def test_file_that_grew_is_read_to_its_end(tmp_path, monkeypatch):
    whole = encoded(drawing(), "PNG")
    (tmp_path / "a.png").write_bytes(whole[:9])
    before = (tmp_path / "a.png").stat()
    monkeypatch.setattr(os, "fstat", lambda _: before)
    (tmp_path / "a.png").write_bytes(whole)
    assert files.read_file(str(tmp_path / "a.png"), LIMITS) == whole
    assert code(tmp_path / "a.png", ImageLimits(max_bytes=100)) == "too_large"


def test_unreadable_file_is_permission_denied(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # other users may not read the parent folders
    tmp_path.chmod(0o755)
    for name, mode in {"open.png": 0o644, "locked.png": 0}.items():
        Path(name).write_bytes(encoded(drawing(), "PNG"))
        Path(name).chmod(mode)
    with awkward.unprivileged():
        assert [code("open.png"), code("locked.png")] == [None, "permission_denied"]


DECODE_FILES = """
import sys, warnings
from pgcli.images import ImageDecoder, ImageSpec
from pgcli.records import Item
from pgcli.images.pool import decode_ahead
items = [Item(n, name, name, name) for n, name in enumerate(sys.argv[1:])]
decode = ImageDecoder(ImageSpec(8))
few = list(map(decode, items)) if BARE else decode_ahead(items, decode, workers=None, total=3)
print(*[decoded.fault and decoded.fault.code for decoded in few])
"""


def decode_in_a_program(source: str, *names: Path, options: tuple[str, ...] = ()) -> list[str]:
    """The stdout and stderr of a program that decodes the files."""
    command = [sys.executable, *options, "-c", source, *map(str, names)]
    root = Path(__file__).parents[2]
    run = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60, check=True)
    return [run.stdout, run.stderr]


@pytest.mark.parametrize("voice", ["libtiff", "log", "warning"])
def test_decoder_messages_do_not_reach_the_terminal(voice, tmp_path):
    file = tmp_path / "noisy"
    file.write_bytes(noisy()[voice])
    bare, quiet = (DECODE_FILES.replace("BARE", str(bare)) for bare in (True, False))
    fate, noise = decode_in_a_program(bare, file)
    assert noise, "decoders print nothing anyway"
    assert decode_in_a_program(quiet, file) == [fate, ""]


@settings(max_examples=150)
@given(st.data())
def test_damaged_images_fail_the_same_in_both_decoders(data):
    damaged = bytearray(encoded(drawing(120, 70), "JPEG"))
    for _ in range(data.draw(st.integers(0, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(damaged[: data.draw(st.integers(0, len(damaged)))])
    few = ImageLimits(max_pixels=10**6)
    exact, fast = decode_source(cut, limits=few), decode_source(cut, FAST, few)
    assert fast.fault == exact.fault
    assert (fast.width, fast.height) == (exact.width, exact.height)
