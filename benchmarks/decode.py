"""Measures how fast one core decodes files to the model's pixels, next to transformers.

    python benchmarks/decode.py                              # 224 px, three sizes of photographs
    python benchmarks/decode.py --resolution 448 --rounds 20
    python benchmarks/decode.py --differences                # what --fast-decode changes

The images are generated and encoded as JPEGs: noise at all scales as in photographs, shapes and
lines of text. The variants run in turns on one core, in alternating order, and are compared by CPU
time, so that other programs do not affect them. Prints one JSON object: for each image size, the
median of every variant in milliseconds, its images/s, and its speed relative to transformers as the
ratio of medians and the lowest and highest ratio of all rounds.

transformers: `SiglipImageProcessorPil` from the opened file to normalized floats; transformers to
bytes: the same without rescaling and normalization; Pillow alone: open, load and resize only, a
lower bound for identical pixels.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from statistics import median
from time import thread_time

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from pgcli.images import ImageLimits, ImageSpec, decode
from pgcli.records import Item

SIZES = {"224 px": (224, 224), "0.5 MP": (816, 612), "12 MP": (4000, 3000)}
REFERENCES = ("transformers", "transformers to bytes")


def main() -> None:
    options = parse_options()
    os.sched_setaffinity(0, {options.core})
    report: dict[str, object] = {
        "resolution": options.resolution,
        "rounds": options.rounds,
        "machine": processor(),
        "versions": {name: version(name) for name in ("pillow", "transformers", "numpy")},
        "python": platform.python_version(),
    }
    with tempfile.TemporaryDirectory() as folder:
        if options.differences:
            report["differences"] = differences(Path(folder))
        else:
            report["sizes"] = {
                name: compared(Path(folder), name, options) for name in options.sizes or SIZES
            }
    print(json.dumps(report, indent=2))


def compared(folder: Path, name: str, options: argparse.Namespace) -> dict[str, object]:
    """The median time of each decoder over all rounds, and its ratio to the references."""
    files = []
    for seed in range(options.images):
        files.append(folder / f"{name} {seed}.jpg")
        files[-1].write_bytes(jpeg(photograph(*SIZES[name], seed=seed)))
    decoders = make_decoders(ImageSpec(options.resolution))
    for decoder in decoders.values():
        decoder(files[0])
    spent: dict[str, list[float]] = {name: [] for name in decoders}
    for round_ in range(options.rounds):
        for name in list(decoders)[:: -1 if round_ % 2 else 1]:
            started = thread_time()
            for file in files:
                decoders[name](file)
            spent[name].append((thread_time() - started) / len(files))
    return {
        "bytes_a_file": round(sum(file.stat().st_size for file in files) / len(files)),
        "milliseconds": {name: round(1000 * median(times), 2) for name, times in spent.items()},
        "images_per_second": {name: round(1 / median(times)) for name, times in spent.items()},
        **{
            f"times as fast as {other}": {
                name: ratio(spent[other], times) for name, times in spent.items() if name != other
            }
            for other in REFERENCES
        },
    }


def make_decoders(spec: ImageSpec) -> dict[str, Callable[[Path], object]]:
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    side = spec.resolution
    processor = SiglipImageProcessorPil(size={"height": side, "width": side})

    def processor_pixels(file: Path, **options: bool) -> object:
        with Image.open(file) as image:
            return processor(image, return_tensors="np", **options)

    def pillow(file: Path) -> object:
        with Image.open(file) as image:
            return np.array(image.resize((side, side), Image.Resampling.BICUBIC))

    return {
        "transformers": processor_pixels,
        "transformers to bytes": partial(processor_pixels, do_rescale=False, do_normalize=False),
        "pillow alone": pillow,
        "pgcli": partial(seen, spec=spec),
        "pgcli --fast-decode": partial(seen, spec=replace(spec, fast_decode=True)),
    }


def seen(file: Path, spec: ImageSpec) -> np.ndarray:
    pixels = decode(Item(0, file.name, str(file), str(file)), spec, ImageLimits()).pixels
    assert pixels is not None
    return pixels


def ratio(slow: list[float], fast: list[float]) -> str:
    rounds = [one / other for one, other in zip(slow, fast, strict=True)]
    return f"{median(slow) / median(fast):.2f} ({min(rounds):.2f} to {max(rounds):.2f})"


def differences(folder: Path) -> list[dict[str, object]]:
    """The differences of fast from exact decoding, in levels of 255."""
    kinds = {"photograph": photograph, "shapes": shapes, "text": text}
    found: list[dict[str, object]] = []
    for size, (width, height) in SIZES.items():
        for kind, draw in kinds.items():
            file = folder / "image.jpg"
            file.write_bytes(jpeg(draw(width, height)))
            for side in (224, 448, 896):
                exact = seen(file, ImageSpec(side)).astype(int)
                apart = abs(seen(file, ImageSpec(side, fast_decode=True)) - exact)
                found.append(
                    {
                        "size": size,
                        "kind": kind,
                        "resolution": side,
                        "mean": round(float(apart.mean()), 2),
                        "one_in_a_hundred": int(np.percentile(apart, 99)),
                        "largest": int(apart.max()),
                    }
                )
    return found


def jpeg(image: Image.Image) -> bytes:
    file = BytesIO()
    image.save(file, "JPEG", quality=85)
    return file.getvalue()


def photograph(width: int, height: int, *, seed: int = 0) -> Image.Image:
    """Noise whose power falls with its frequency, as that of photographs does, and some grain."""
    random = np.random.default_rng(seed)
    light = 128 + random.normal(size=(height, width, 3)) * 3
    cells = 4
    while cells <= min(256, width // 2):
        noise = random.normal(size=(cells * height // width, cells, 3)).astype(np.float32)
        for channel in range(3):
            coarse = Image.fromarray(noise[..., channel])
            light[..., channel] += np.asarray(coarse.resize((width, height))) * 100 / cells**0.7
        cells *= 2
    return Image.fromarray(light.clip(0, 255).astype(np.uint8))


def shapes(width: int, height: int) -> Image.Image:
    """Filled circles with sharp edges on white."""
    random = np.random.default_rng(1)
    image = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(image)
    for _ in range(20):
        x, y, r = (random.uniform(0, 1) * side for side in (width, height, width / 4))
        draw.circle((x, y), r, fill=tuple(map(int, random.integers(0, 256, 3))))
    return image


def text(width: int, height: int) -> Image.Image:
    """Forty lines of black text on white, for the sharpest edges."""
    image = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(max(6, height // 50))
    for line in range(40):
        words = "The quick brown fox jumps over the lazy dog. " * 4
        draw.text((width // 80, line * height // 40), f"{line} {words}", fill="black", font=font)
    return image


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    found = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{found[0]}, one of {len(found)} cores" if found else platform.machine()


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--resolution", type=int, choices=(224, 448, 896), default=224)
    parser.add_argument("--sizes", choices=SIZES, nargs="*", help="default: all")
    parser.add_argument("--images", type=int, default=4, help="files of each size")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--core", type=int, default=0, help="the CPU core to run on")
    parser.add_argument("--differences", action="store_true", help="pixels instead of times")
    return parser.parse_args()


if __name__ == "__main__":
    main()
