"""A folder of awkward files, each with the fate it must have: answered, or an error row's code."""

from __future__ import annotations

import io
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo

ANSWERED = None


def make(folder: Path) -> dict[str, str | None]:
    """Fill the folder; the fates by relative path (undecodable names with surrogates), unsorted."""
    fates: dict[str, str | None] = {}

    def put(name: str, data: bytes, code: str | None) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        fates[name] = code

    for name, (data, code) in {**_broken(), **_odd_but_fine(), **_many_colours()}.items():
        put(name, data, code)
    for name in AWKWARD_NAMES:
        put(name + ".png", encoded(drawing(), "PNG"), ANSWERED)
    fates |= _no_plain_files(folder)
    return fates


AWKWARD_NAMES = (
    "new\nline",
    "tab\t",
    "esc\x1b]0;title\x07",
    "clear\x1b[2J",
    "right\u202eleft",
    "[bold]markup[/bold]",
    "{path}",
    "%s",
    "-rf",
    "=1+1",
    "<script>alert(1)</script>".replace("/", "\u2215"),
    "quote';\"",
    " blanks ",
    "e\u0301",
    "\u00e9",
    "n" * 251,
    os.fsdecode(b"latin-\xe9"),
    "file:like a uri",
    "sub folder/deeper/leaf",
)


def drawing(width: int = 40, height: int = 30) -> Image.Image:
    """A colour ramp, each of whose pixels differs from its neighbours."""
    y, x = np.mgrid[:height, :width]
    pixels = np.stack([x * 255 // width, y * 255 // height, (x + y) % 256], axis=-1)
    return Image.fromarray(pixels.astype(np.uint8))


def encoded(image: Image.Image, format_: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, format_, **options)
    return file.getvalue()


def png(width: int, height: int, *, depth: int = 1, idat: bytes = b"") -> bytes:
    """A grey PNG whose header claims a size and whose data may be anything."""
    header = struct.pack(">IIBBBBB", width, height, depth, 0, 0, 0, 0)
    chunks = _chunk(b"IHDR", header) + _chunk(b"IDAT", idat) + _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def _chunk(kind: bytes, data: bytes) -> bytes:
    crc = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", crc)


def _broken() -> dict[str, tuple[bytes, str]]:
    jpeg, whole_png = encoded(drawing(), "JPEG"), encoded(drawing(), "PNG")
    webp, tiff = encoded(drawing(), "WEBP"), encoded(drawing(), "TIFF", compression="tiff_lzw")
    bomb_gif = b"GIF89a" + struct.pack("<HH", 65535, 65535) + b"\x80\0\0" + b"\0" * 6
    bomb_gif += b"," + struct.pack("<HHHH", 0, 0, 65535, 65535) + b"\0\x02\x02\x4c\x01\0;"
    bad_crc = bytearray(whole_png)
    bad_crc[whole_png.index(b"IDAT") + 10] ^= 0xFF
    return {
        "empty.png": (b"", "not_an_image"),
        "one byte.jpg": (b"\xff", "not_an_image"),
        "page.jpg": (b"<!DOCTYPE html><html><body>404</body></html>", "not_an_image"),
        "letter.bmp": (b"BMW and more of these", "not_an_image"),
        "half.jpg": (jpeg[: len(jpeg) // 2], "truncated"),
        "last byte gone.jpg": (jpeg[:-1], "truncated"),
        "header only.jpg": (jpeg[:30], "truncated"),
        "half.png": (whole_png[: len(whole_png) // 2], "truncated"),
        "half.webp": (webp[: len(webp) // 2], "truncated"),
        "half.tif": (tiff[: len(tiff) // 2], "truncated"),
        "half.gif": (encoded(drawing(), "GIF")[:900], "truncated"),
        "half.avif": (encoded(drawing(), "AVIF")[:-50], "truncated"),
        "half.bmp": (encoded(drawing(), "BMP")[:2000], "truncated"),
        "bad crc.png": (bytes(bad_crc), "decode_failed"),
        "few data.png": (png(100, 100, depth=8, idat=zlib.compress(b"\0" * 10)), "decode_failed"),
        "no zlib.png": (png(100, 100, idat=b"no zlib at all"), "decode_failed"),
        "text bomb.png": (_text_bomb(), "decode_failed"),
        "noise.tiff": (tiff[:8] + b"\xff" * 400 + tiff[408:], "decode_failed"),
        "bomb.png": (png(50_000, 50_000), "too_many_pixels"),
        "bomb.gif": (bomb_gif, "too_many_pixels"),
        "warned.png": (png(13_000, 13_000), "too_many_pixels"),
        "eps.png": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "unsupported_format"),
        "pdf.jpg": (b"%PDF-1.7\n", "unsupported_format"),
        "psd.jpg": (b"8BPS\0\x01" + b"\0" * 40, "unsupported_format"),
        "heic.jpg": (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "unsupported_format"),
        "fits.png": (b"SIMPLE  =                    T", "unsupported_format"),
        "svg.png": (b'<?xml version="1.0"?><svg/>', "unsupported_format"),
        "icon.bmp": (b"\0\0\1\0\1\0" + b"\0" * 16, "unsupported_format"),
    }


def _text_bomb() -> bytes:
    compressed = zlib.compress(b"\0" * 2**20, 9)
    texts = b"".join(_chunk(b"zTXt", b"k%d\0\0" % n + compressed) for n in range(80))
    whole = encoded(drawing(), "PNG")
    return whole[:33] + texts + whole[33:]


def _odd_but_fine() -> dict[str, tuple[bytes, None]]:
    exif = Image.Exif()
    exif[0x0112] = 6
    frames = [drawing().rotate(n) for n in range(0, 360, 60)]
    text = PngInfo()
    text.add_text("note", "hello")
    return {
        "upper.JPG": (encoded(drawing(), "JPEG"), None),
        "png inside.jpg": (encoded(drawing(), "PNG", pnginfo=text), None),
        "rotated.jpeg": (encoded(drawing(), "JPEG", exif=exif.tobytes()), None),
        "exif rubbish.jpg": (encoded(drawing(), "JPEG", exif=b"Exif\0\0II*\0\xff\xff"), None),
        "icc rubbish.png": (encoded(drawing(), "PNG", icc_profile=b"nonsense"), None),
        "dot.png": (encoded(drawing(1, 1), "PNG"), None),
        "line.png": (encoded(drawing(1, 20_000), "PNG"), None),
        "many frames.gif": (
            encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]),
            None,
        ),
        "progressive.jpe": (encoded(drawing(), "JPEG", progressive=True), None),
    }


def _many_colours() -> dict[str, tuple[bytes, None]]:
    image = drawing()
    grey16 = Image.fromarray((np.asarray(image)[..., 0].astype(np.uint16)) * 257)
    return {
        "grey.pgm": (encoded(image.convert("L"), "PPM"), None),
        "bits.pbm": (encoded(image.convert("1"), "PPM"), None),
        "palette.png": (encoded(image.convert("P"), "PNG", transparency=0), None),
        "alpha.png": (encoded(image.convert("RGBA"), "PNG"), None),
        "cmyk.jpg": (encoded(image.convert("CMYK"), "JPEG"), None),
        "grey16.png": (encoded(grey16, "PNG"), None),
        "float.tif": (encoded(image.convert("F"), "TIFF"), None),
        "photo.webp": (encoded(image, "WEBP"), None),
        "photo.avif": (encoded(image, "AVIF"), None),
        "photo.bmp": (encoded(image, "BMP"), None),
    }


def _no_plain_files(folder: Path) -> dict[str, str | None]:
    """What only looks like a file: pipes, links, a huge hole, a file that may not be read."""
    os.mkfifo(folder / "pipe.jpg")
    (folder / "endless.jpg").symlink_to("/dev/zero")
    (folder / "secret.jpg").symlink_to("/etc/passwd")
    (folder / "nowhere.jpg").symlink_to("gone.jpg")
    (folder / "ring a.jpg").symlink_to("ring b.jpg")
    (folder / "ring b.jpg").symlink_to("ring a.jpg")
    (folder / "up").symlink_to(".")
    with open(folder / "hole.jpg", "wb") as file:
        file.truncate(2**38)
    fates: dict[str, str | None] = {
        "pipe.jpg": "not_a_regular_file",
        "endless.jpg": "path_not_allowed",
        "secret.jpg": "path_not_allowed",
        "nowhere.jpg": "missing",
        "ring a.jpg": "io_error",
        "ring b.jpg": "io_error",
        "hole.jpg": "too_large",
    }
    if os.geteuid() != 0:  # root may read everything
        (folder / "locked.png").write_bytes(encoded(drawing(), "PNG"))
        (folder / "locked.png").chmod(0)
        fates["locked.png"] = "permission_denied"
    return fates
