"""Awkward images, values and sources: the inputs that tests of every room share."""

from __future__ import annotations

import csv
import io
import json
import os
import stat
import struct
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from PIL.PngImagePlugin import PngInfo

ANSWERED = None


def make(folder: Path) -> dict[str, str | None]:
    """Fill the folder; return the results by relative path (undecodable bytes as surrogates)."""
    results: dict[str, str | None] = {}

    def put(name: str, data: bytes, code: str | None) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        results[name] = code

    for name, (data, code) in {**broken_files(), **valid_files(), **pixel_formats()}.items():
        put(name, data, code)
    for name in AWKWARD_NAMES:
        put(name + ".png", encoded(drawing(), "PNG"), ANSWERED)
    results |= special_files(folder)
    return results


AWKWARD_NAMES = (
    "new\nline",
    "tab\t",
    "esc\x1b]0;title\x07",
    "clear\x1b[2J",
    "copy\x1b]52;c;cm0=\x07",
    "link\x1b]8;;x:y\x1b\\here",
    "c1\x9b2J\x7f",
    "\x1b[31mred\r",
    "right\u202eleft",
    "[bold]markup[/bold]",
    "[red]",
    ":smiley:",
    "{path}",
    "%s",
    "-rf",
    "--help",
    "=1+1",
    "<script>alert(1)</script>".replace("/", "\u2215"),
    "quote';\"",
    '";',
    " blanks ",
    "back\\slash",
    "Case",
    "case",
    "e\u0301",
    "\u00e9",
    "n" * 251,
    os.fsdecode(b"latin-\xe9"),
    os.fsdecode(b"\xff"),
    "file:like a uri",
    "sub folder/deeper/leaf",
)


@contextmanager
def unprivileged() -> Iterator[None]:
    """Run the block without root's privilege of reading everything."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def drawing(width: int = 40, height: int = 30) -> Image.Image:
    """A colour ramp in which each pixel differs from its neighbours."""
    y, x = np.mgrid[:height, :width]
    pixels = np.stack([x * 255 // width, y * 255 // height, (x + y) % 256], axis=-1)
    return Image.fromarray(pixels.astype(np.uint8))


def encoded(image: Image.Image, format_: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, format_, **options)
    return file.getvalue()


def tar_of(members: Iterable[tuple[str, bytes]], kind: str = "") -> bytes:
    """An archive with these names and contents; `kind` is a compression."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=f"w:{kind}") as archive:  # type: ignore[call-overload]
        for name, data in members:
            header = tarfile.TarInfo(name)
            header.size = len(data)
            archive.addfile(header, io.BytesIO(data))
    return file.getvalue()


def png(width: int, height: int, *, depth: int = 1, idat: bytes = b"") -> bytes:
    """A grey PNG that states this size and contains arbitrary data."""
    header = struct.pack(">IIBBBBB", width, height, depth, 0, 0, 0, 0)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", idat) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def gif(width: int, height: int, *, frame: tuple[int, int] | None = None) -> bytes:
    """A GIF that states a size, and another for its only frame, without pixels."""
    canvas = b"GIF89a" + struct.pack("<HH", width, height) + b"\x80\0\0" + b"\0" * 6
    first = b"," + struct.pack("<HHHH", 0, 0, *(frame or (width, height)))
    return canvas + first + b"\0\x02\x02\x4c\x01\0;"


def bmp(width: int, height: int) -> bytes:
    """A BMP that states a size and has no pixels."""
    sizes = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, *[0] * 6)
    return b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + sizes


def tiff(
    width: int,
    height: int,
    *,
    more: tuple[tuple[int, ...], ...] = (),
    data: bytes = b"",
    next_: int = 0,
) -> bytes:
    """A grey TIFF that states a size, with `more` tags (number, type, count, value) and data."""
    tags = [(256, 4, 1, width), (257, 4, 1, height), (258, 3, 1, 8), (259, 3, 1, 1)]
    tags += [(262, 3, 1, 1), (277, 3, 1, 1), (278, 4, 1, height), (279, 4, 1, width * height)]
    known = {tag[0]: tag for tag in (*tags, (273, 4, 1, 0), *more)}
    start = 8 + 2 + 12 * len(known) + 4
    known[273] = (273, 4, 1, start)
    entries = b"".join(struct.pack("<HHII", *known[number]) for number in sorted(known))
    head = b"II*\0\x08\0\0\0" + struct.pack("<H", len(known))
    return head + entries + struct.pack("<I", next_) + data


def chunk(kind: bytes, data: bytes) -> bytes:
    crc = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", crc)


def broken_files() -> dict[str, tuple[bytes, str]]:
    jpeg, whole_png = encoded(drawing(), "JPEG"), encoded(drawing(), "PNG")
    webp, tiff = encoded(drawing(), "WEBP"), encoded(drawing(), "TIFF", compression="tiff_lzw")
    bad_crc = bytearray(whole_png)
    bad_crc[whole_png.index(b"IDAT") + 10] ^= 0xFF
    return {
        "empty.png": (b"", "not_an_image"),
        "one byte.jpg": (b"\xff", "not_an_image"),
        "page.jpg": (b"<!DOCTYPE html><html><body>404</body></html>", "not_an_image"),
        "letter.bmp": (b"BMW and more of these", "not_an_image"),
        "half.jpg": (jpeg[: len(jpeg) // 2], "truncated"),
        "last byte gone.jpg": (jpeg[:-1], "truncated"),
        "no end.jpg": (jpeg[:-2], "truncated"),
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
        "bomb.gif": (gif(65535, 65535), "too_many_pixels"),
        "bomb inside.gif": (gif(10, 10, frame=(65535, 65535)), "too_many_pixels"),
        "bomb.bmp": (bmp(2**31 - 1, 2**31 - 1), "too_many_pixels"),
        "warned.png": (png(13_000, 13_000), "too_many_pixels"),
        "eps.png": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "unsupported_format"),
        "pdf.jpg": (b"%PDF-1.7\n", "unsupported_format"),
        "psd.jpg": (b"8BPS\0\x01" + b"\0" * 40, "unsupported_format"),
        "heic.jpg": (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "unsupported_format"),
        "wmf.png": (b"\xd7\xcd\xc6\x9a" + b"\0" * 40, "unsupported_format"),
        "fits.png": (b"SIMPLE  =                    T", "unsupported_format"),
        "svg.png": (b'<?xml version="1.0"?><svg/>', "unsupported_format"),
        "icon.bmp": (b"\0\0\1\0\1\0" + b"\0" * 16, "unsupported_format"),
    }


def _text_bomb() -> bytes:
    compressed = zlib.compress(b"\0" * 2**20, 9)
    texts = b"".join(chunk(b"zTXt", b"k%d\0\0" % n + compressed) for n in range(200))
    whole = encoded(drawing(), "PNG")
    return whole[:33] + texts + whole[33:]


def valid_files() -> dict[str, tuple[bytes, None]]:
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
        "row.png": (encoded(drawing(20_000, 1), "PNG"), None),
        "tiff inside.png": (encoded(drawing(), "TIFF"), None),
        "folder.jpg/leaf.png": (encoded(drawing(), "PNG"), None),
        "many frames.gif": (
            encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]),
            None,
        ),
        "progressive.jpe": (encoded(drawing(), "JPEG", progressive=True), None),
    }


def pixel_formats() -> dict[str, tuple[bytes, str | None]]:
    image = drawing()
    grey16 = Image.fromarray((np.asarray(image)[..., 0].astype(np.uint16)) * 257)
    return {
        "grey.pgm": (encoded(image.convert("L"), "PPM"), None),
        "bits.pbm": (encoded(image.convert("1"), "PPM"), None),
        "palette.png": (encoded(image.convert("P"), "PNG", transparency=0), None),
        "alpha.png": (encoded(image.convert("RGBA"), "PNG"), None),
        "cmyk.jpg": (encoded(image.convert("CMYK"), "JPEG"), None),
        "grey16.png": (encoded(grey16, "PNG"), None),
        "float.tif": (encoded(image.convert("F"), "TIFF"), "unsupported_format"),
        "photo.webp": (encoded(image, "WEBP"), None),
        "photo.avif": (encoded(image, "AVIF"), None),
        "photo.bmp": (encoded(image, "BMP"), None),
    }


def special_files(folder: Path) -> dict[str, str | None]:
    """Files that are not regular: pipes, links, a huge hole, an unreadable file."""
    os.mkfifo(folder / "pipe.jpg")
    os.mknod(folder / "socket.jpg", stat.S_IFSOCK | 0o600)
    results: dict[str, str | None] = {}
    with suppress(PermissionError):  # some containers forbid devices
        os.mknod(folder / "device.jpg", stat.S_IFCHR | 0o600, os.makedev(1, 5))
        results["device.jpg"] = "not_a_regular_file"
    (folder / "endless.jpg").symlink_to("/dev/zero")
    (folder / "secret.jpg").symlink_to("/etc/passwd")
    (folder / "nowhere.jpg").symlink_to("gone.jpg")
    (folder / "ring a.jpg").symlink_to("ring b.jpg")
    (folder / "ring b.jpg").symlink_to("ring a.jpg")
    (folder / "up").symlink_to(".")
    with open(folder / "hole.jpg", "wb") as file:
        file.truncate(2**40)
    results |= {
        "socket.jpg": "not_a_regular_file",
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
        results["locked.png"] = "permission_denied"
    return results


def noisy() -> dict[str, bytes]:
    """Files that libtiff, Pillow's logger and Pillow's warnings report."""
    samples = struct.pack("<HHII", 277, 3, 1, 3)
    tiff, lzw = encoded(drawing(), "TIFF"), encoded(drawing(), "TIFF", compression="tiff_lzw")
    return {
        "libtiff": lzw[:8] + b"\xff" * 400 + lzw[408:],
        "log": tiff.replace(samples, struct.pack("<HHII", 277, 3, 1, 26_627)),
        "warning": encoded(drawing(), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\0\0"),
    }


STORED, UPRIGHT = (64, 48), (48, 64)
LEFT, TOP, RIGHT, BOTTOM = 8, 4, 28, 14
#: The upright corners of a box in the stored image, for each orientation that swaps the sides.
TURNED = {5: [4, 8, 14, 28], 6: [34, 8, 44, 28], 7: [34, 36, 44, 56], 8: [4, 36, 14, 56]}
FLIPPED = {2: [36, 4, 56, 14], 3: [36, 34, 56, 44], 4: [8, 34, 28, 44]}


def photograph(name: str, orientation: int, format_: str = "PNG", size: Any = STORED) -> None:
    """An image with a white box, stored with an EXIF orientation."""
    pixels = np.zeros(size[::-1], np.uint8)
    pixels[TOP:BOTTOM, LEFT:RIGHT] = 255
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(name, format_, exif=exif)


#: `to_text` writes them as nested lists, which the json module could not write.
DEEP = {f"deep {levels}": "[" * levels + "]" * levels for levels in (100, 900, 5000)}
HOSTILE: list[Any] = [None, True, 5, -1, 0, 10**400, -(10**400), 2**63, 1e308, -1e308]
HOSTILE += [
    float("nan"),
    float("inf"),
    "",
    "x",
    "-",
    "\0",
    "../x",
    "/dev/null",
    "\ud800",
    "x" * 999,
]
HOSTILE += [[], {}, [5], ["x"], [None], {"a": 1}, {"a": {"b": [1]}}, [[]], [{}], *DEEP]


def to_text(value: Any) -> str:
    text = json.dumps(value)
    for name, deep in DEEP.items():
        text = text.replace(f'"{name}"', deep)
    return text


def paths(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to all inner values."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in pairs:
        yield (*above, key)
        if isinstance(inner, dict | list):
            yield from paths(inner, (*above, key))


def replace_at(value: Any, path: tuple[Any, ...], new: Any) -> None:
    for key in path[:-1]:
        value = value[key]
    value[path[-1]] = new


COUNT = 57


def folder() -> str:
    Path("d/sub").mkdir(parents=True)
    for n in range(COUNT):
        Path(f"d/{'sub/' * (n % 2)}{n}.png").write_bytes(b"x")
    return "d"


def json_lines() -> str:
    """With a byte order mark, blank lines and multi-byte letters."""
    lines = (json.dumps({"image": f"ü{n}.png"}, ensure_ascii=False) for n in range(COUNT))
    Path("m.jsonl").write_text("\ufeff\n" + "\n\r\n".join(lines), encoding="utf-8")
    return "m.jsonl"


def table() -> str:
    """With rows of several lines, and empty ones."""
    with open("m.csv", "w", newline="", encoding="utf-8-sig") as file:
        writer = csv.writer(file)
        writer.writerow(["image", "note"])
        for n in range(COUNT):
            writer.writerow([f"{n}.png", "ü\n\n" * (n % 3)])
            file.write("\r\n" * (n % 2))
    return "m.csv"


def parquet() -> str:
    images = [{"bytes": b"%d" % n, "path": f"{n}.png"} for n in range(COUNT)]
    pq.write_table(pa.table({"image": images}), "m.parquet", row_group_size=10)
    return "m.parquet"


def archive(name: str = "m.tar") -> str:
    """With long names, samples without an image, hidden files and repeated ids."""
    members: dict[str, bytes] = {}
    for n in range(COUNT):
        stem = f"{'long' * 40 * (n % 2)}{n}"
        members |= {f"{stem}.png": b"%d" % n, f"{stem}.json": b'{"id": "%d"}' % (n % 9)}
        members |= {f".hidden{n}": b"", f"z{n}.txt": b"not an image"}
    Path(name).write_bytes(tar_of(members.items(), "gz" if name.endswith("gz") else ""))
    return name


FORMATS = {
    "folder": folder,
    "jsonl": json_lines,
    "csv": table,
    "parquet": parquet,
    "tar": archive,
    "tgz": lambda: archive("m.tgz"),
}
