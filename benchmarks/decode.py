"""Measures how fast one core decodes files to the model's pixels, compared with transformers.

    python benchmarks/decode.py                              # 224 px, three sizes of photographs
    python benchmarks/decode.py --resolution 448 --rounds 20
    python benchmarks/decode.py --differences                # changed pixels with --fast-decode
    python benchmarks/decode.py --words 1000                 # and its effect on reading words

The images are generated and encoded as JPEGs: noise at all scales as in photographs, shapes and
lines of text. The variants alternate on one core, and are compared by CPU
time, so that other programs do not affect them. Prints one JSON object: for each image size, the
median of every variant in milliseconds, and its speed relative to transformers as the ratio of
medians and the lowest and highest ratio of all rounds. transformers is `SiglipImageProcessorPil`
from the opened file to normalized floats; Pillow alone opens, loads and resizes.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from io import BytesIO
from math import ceil
from pathlib import Path
from statistics import median
from time import thread_time
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from benchmarks.measure import options
from pgcli import tasks
from pgcli.images import ImageLimits, ImageSpec, decode
from pgcli.records import Item

if TYPE_CHECKING:
    from pgcli.engine.engine import InferenceEngine

SIZES = {"224 px": (224, 224), "0.5 MP": (816, 612), "12 MP": (4000, 3000)}


def main() -> None:
    args = options(
        __doc__, resolution=(224, 448, 896), images=4, rounds=15, core=0, differences=False, words=0
    )
    if args.words:
        print(json.dumps(words_read(args.words), indent=2))
        return
    os.sched_setaffinity(0, {args.core})
    with tempfile.TemporaryDirectory() as folder:
        if args.differences:
            report: object = differences(Path(folder))
        else:
            spec = ImageSpec(args.resolution)
            report = {
                name: compared(Path(folder), name, spec, args.images, args.rounds) for name in SIZES
            }
    print(json.dumps(report, indent=2))


def compared(
    folder: Path, name: str, spec: ImageSpec, images: int, rounds: int
) -> dict[str, object]:
    """The median time of each decoder over all rounds, and its ratio to transformers."""
    files = [folder / f"{name} {seed}.jpg" for seed in range(images)]
    for seed, file in enumerate(files):
        file.write_bytes(jpeg(photograph(*SIZES[name], seed=seed)))
    decoders = make_decoders(spec)
    for decoder in decoders.values():
        decoder(files[0])
    spent: dict[str, list[float]] = {name: [] for name in decoders}
    for number in range(rounds):
        for name in list(decoders)[:: -1 if number % 2 else 1]:
            started = thread_time()
            for file in files:
                decoders[name](file)
            spent[name].append((thread_time() - started) / len(files))
    return {
        "milliseconds": {name: round(1000 * median(times), 2) for name, times in spent.items()},
        "times as fast as transformers": {
            name: ratio(spent["transformers"], times) for name, times in spent.items()
        },
    }


def make_decoders(spec: ImageSpec) -> dict[str, Callable[[Path], object]]:
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    side = spec.resolution
    processor = SiglipImageProcessorPil(size={"height": side, "width": side})

    def transformers(file: Path) -> object:
        with Image.open(file) as image:
            return processor(image, return_tensors="np")

    def pillow(file: Path) -> object:
        with Image.open(file) as image:
            return np.array(image.resize((side, side), Image.Resampling.BICUBIC))

    return {
        "transformers": transformers,
        "pillow alone": pillow,
        "pgcli": partial(seen, spec=spec),
        "pgcli --fast-decode": partial(seen, spec=replace(spec, fast_decode=True)),
    }


def seen(file: Path, spec: ImageSpec) -> np.ndarray:
    pixels = decode(Item(0, file.name, str(file), str(file)), spec, ImageLimits()).pixels
    assert pixels is not None
    return pixels


def ratio(slow: list[float], fast: list[float]) -> str:
    rounds = [seconds / faster for seconds, faster in zip(slow, fast, strict=True)]
    return f"{median(slow) / median(fast):.2f} ({min(rounds):.2f} to {max(rounds):.2f})"


def differences(folder: Path) -> list[dict[str, object]]:
    """The differences between fast and exact decoding, in levels of 255."""
    kinds = {"photograph": photograph, "shapes": shapes, "text": text}
    rows: list[dict[str, object]] = []
    for size, (width, height) in SIZES.items():
        for kind, draw in kinds.items():
            file = folder / "image.jpg"
            file.write_bytes(jpeg(draw(width, height)))
            for side in (224, 448, 896):
                exact = seen(file, ImageSpec(side)).astype(int)
                apart = abs(seen(file, ImageSpec(side, fast_decode=True)) - exact)
                rows.append(
                    {
                        "size": size,
                        "kind": kind,
                        "resolution": side,
                        "mean": round(float(apart.mean()), 2),
                        "one_in_a_hundred": int(np.percentile(apart, 99)),
                        "largest": int(apart.max()),
                    }
                )
    return rows


def words_read(count: int) -> list[dict[str, object]]:
    """The words that the built-in model reads on drawings, decoded in full and fast.

    Each drawing has the smallest size that is decoded at 1/2 or 1/4, where pixels differ most.
    """
    from examples.demo_model.scenes import EVAL_SEEDS, lettered_scene, render
    from pgcli.checkpoints.find import find
    from pgcli.engine.loader import open_engine

    engine = open_engine(find("demo"), batch_size=64)
    scenes = [lettered_scene(EVAL_SEEDS.start + number) for number in range(count)]
    words = [scene.words[0].text for scene in scenes]
    reports: list[dict[str, object]] = []
    for part in (2, 4):
        shorter = 2 * part * engine.spec.resolution
        files = []
        for scene in scenes:
            longer = max(scene.width, scene.height) / min(scene.width, scene.height) * shorter
            files.append(jpeg(render(scene, ceil(longer))))
        exact = answers(engine, files, fast_decode=False)
        fast = answers(engine, files, fast_decode=True)
        reports.append(
            {
                "shorter side": shorter,
                "decoded at": f"1/{part}",
                "words": count,
                "read exactly": sum(map(str.__eq__, exact, words)),
                "read fast": sum(map(str.__eq__, fast, words)),
                "different answers": sum(map(str.__ne__, exact, fast)),
            }
        )
    return reports


def answers(engine: InferenceEngine, files: Sequence[bytes], *, fast_decode: bool) -> list[str]:
    """The word that the model reads in each file."""
    spec, question = replace(engine.spec, fast_decode=fast_decode), tasks.ocr()
    prompts = question.templates or ()
    items = (Item(number, "", "", data=file, prompts=prompts) for number, file in enumerate(files))
    images = ((item.index, decode(item, spec, ImageLimits())) for item in items)
    rows = dict(engine.ask(images, question))
    return [rows[number].answer or "" for number in range(len(files))]


def jpeg(image: Image.Image) -> bytes:
    file = BytesIO()
    image.save(file, "JPEG", quality=85)
    return file.getvalue()


def photograph(width: int, height: int, *, seed: int = 0) -> Image.Image:
    """Noise with a power that falls with its frequency, as in photographs, and some grain."""
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


if __name__ == "__main__":
    main()
