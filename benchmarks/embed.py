"""Compares `pgcli embed` with transformers: from JPEG files to a file of vectors.

    python benchmarks/embed.py                             # SigLIP base with random weights
    python benchmarks/embed.py --model folder --images 500 --dtype bfloat16
    python -m benchmarks.embed --no-time --images 5000 --batch-size 64

Each program runs in its own process, alternately, with the same checkpoint, files, batch size and
dtype. The reference is a plain loop: Pillow opens, the library's processor prepares, the model
encodes. The time of a run with one batch is subtracted, so images/s exclude the first batch.
Prints one JSON object: seconds and processor seconds of every run, images/s of the medians, their
ratios, and the largest difference of the vectors.

With `--no-time` the model takes no time, and images are as small as its input: what remains is
the work around the model. Prints the milliseconds of processor time per image, in this process and
in its two decoding processes, and images/s, each of the best round; the time of a tenth of the
images is subtracted.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks.decode import jpeg, photograph
from benchmarks.measure import options, times_in_turns, typical

SIZE = (640, 480)
DISTINCT = 500
TRANSFORMERS = """
import sys
import pyarrow as pa, pyarrow.parquet as pq, torch, transformers
from PIL import Image

folder, out, dtype, batch, *files = sys.argv[1:]
device = "cuda" if torch.cuda.is_available() else "cpu"
model = transformers.AutoModel.from_pretrained(folder, dtype=getattr(torch, dtype))
model = model.to(device).eval()
processor = transformers.AutoImageProcessor.from_pretrained(folder)
vectors = []
with torch.inference_mode():
    for start in range(0, len(files), int(batch)):
        images = [Image.open(file).convert("RGB") for file in files[start : start + int(batch)]]
        pixels = processor(images, return_tensors="pt")["pixel_values"].to(device, model.dtype)
        out_features = model.get_image_features(pixel_values=pixels)
        features = getattr(out_features, "pooler_output", out_features).float()
        vectors += torch.nn.functional.normalize(features, dim=-1).cpu().tolist()
pq.write_table(pa.table({"embedding": vectors}), out)
"""


def main() -> None:
    args = options(
        __doc__,
        model=str,
        dtype=("float32", "bfloat16"),
        batch_size=8,
        images=64,
        rounds=3,
        no_time=False,
    )
    if args.no_time:
        print(json.dumps(around_the_model(args.images, args.batch_size, args.rounds)))
        return
    with TemporaryDirectory() as scratch:
        folder = args.model or _random_model(Path(scratch) / "model")
        files = _photos(Path(scratch) / "photos", args.images)
        settings = [args.dtype, str(args.batch_size)]
        outputs = [str(Path(scratch) / f"{name}.parquet") for name in ("pgcli", "reference")]

        def commands(count: int) -> dict[str, list[str]]:
            few = files[:count]
            embed = [sys.executable, "-m", "pgcli", "embed", *few, "--model", folder]
            embed += ["--dtype", args.dtype, "--batch-size", str(args.batch_size)]
            embed += ["-o", outputs[0], "--overwrite", "--quiet"]
            program = [sys.executable, "-c", TRANSFORMERS, folder, outputs[1]]
            return {"pgcli": embed, "transformers": [*program, *settings, *few]}

        first = min(args.batch_size, len(files) // 2)
        starts, times = (
            times_in_turns(commands(count), args.rounds) for count in (first, len(files))
        )
        vectors = [_vectors(Path(output)) for output in outputs]
    medians = {name: typical(runs) for name, runs in times.items()}
    rates = {
        name: (len(files) - first) / max(1e-9, medians[name].clock - typical(runs).clock)
        for name, runs in starts.items()
    }
    ours, reference = medians["pgcli"], medians["transformers"]
    report = {
        "images": len(files),
        "batch_size": args.batch_size,
        "dtype": args.dtype,
        "clock_and_processor_seconds": times,
        "those_of_the_first_batch": starts,
        "images_per_second": {name: round(rate, 2) for name, rate in rates.items()},
        "ratio": round(rates["pgcli"] / rates["transformers"], 2),
        "ratio_of_whole_runs": round(reference.clock / ours.clock, 2),
        "ratio_of_processor_time": round(reference.processor / ours.processor, 2),
        "largest_difference": float(np.abs(vectors[0] - vectors[1]).max()),
    }
    print(json.dumps(report, indent=2))


def around_the_model(images: int, batch_size: int, rounds: int) -> dict[str, float]:
    """The processor time per image without the model's, in milliseconds, and images/s."""
    import torch

    from pgcli.run import answering
    from pgcli.run.request import make_request
    from pgcli.run.run import run
    from pgcli.towers import engine

    torch.set_num_threads(1)  # idle threads of the model would spin
    vectors = torch.nn.functional.normalize(torch.randn(batch_size, 768), dim=-1)
    replaced: Any = engine  # also on machines whose other runs have several engines
    replaced.normalize_pixels = lambda pixels, *_: pixels
    replaced.EmbeddingEngine._encode_pixels = lambda _, pixels: vectors[: len(pixels)]
    answering.Answering.has_workers = lambda *_: False  # type: ignore[method-assign]
    best = [1e9] * 3
    with TemporaryDirectory() as scratch:
        model = _random_model(Path(scratch) / "model", layers=1)
        folder = Path(scratch) / "photos"
        _photos(folder, images, size=(224, 224))
        for number in range(rounds + 1):
            times = []
            for count in (images // 10, images):
                options = {"model": model, "workers": 2, "limit": count, "batch_size": batch_size}
                output = {"output": f"{scratch}/{number}-{count}.parquet"}
                before = _seconds()
                run(make_request("embed", [str(folder)], options | output), lambda _: None)
                times.append([b - a for a, b in zip(before, _seconds(), strict=True)])
            spent = [
                (many - few) / (images - images // 10) for few, many in zip(*times, strict=True)
            ]
            if number:  # the first round is a warm-up
                best = [min(pair) for pair in zip(best, spent, strict=True)]
    this_process, decoding = (round(seconds * 1000, 3) for seconds in best[:2])
    rate = round(1 / best[2])
    return {"this_process": this_process, "decoding": decoding, "images_per_second": rate}


def _seconds() -> tuple[float, float, float]:
    """The processor time of this process and of its ended children, and the time."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return process_time(), children.ru_utime + children.ru_stime, perf_counter()


def _vectors(file: Path) -> np.ndarray:
    return np.array(pq.read_table(file).column("embedding").to_pylist())


def _photos(folder: Path, count: int, size: tuple[int, int] = SIZE) -> list[str]:
    """JPEG files with as much detail as photographs; at most DISTINCT different ones."""
    folder.mkdir()
    files = [folder / f"{number:05}.jpg" for number in range(count)]
    photographs = [jpeg(photograph(*size, seed=seed)) for seed in range(min(count, DISTINCT))]
    for number, file in enumerate(files):
        file.write_bytes(photographs[number % DISTINCT])
    return [*map(str, files)]


def _random_model(folder: Path, layers: int = 12) -> str:
    """A checkpoint of SigLIP base with random weights and so many layers."""
    from tests.support import towers

    sizes = towers.BASE | {"num_hidden_layers": layers}
    return str(towers.checkpoint_into(folder, "siglip", sizes=sizes, image=towers.BASE_IMAGE))


if __name__ == "__main__":
    main()
