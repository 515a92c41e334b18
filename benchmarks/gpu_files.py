"""The stage `files` of benchmarks/gpu.py: whole commands, from photographs to rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch

from benchmarks.decode import SIZES, jpeg, photograph
from benchmarks.full_size import make
from benchmarks.measure import ROOT

PROCESSES = 12
GROUP = 128  # rows that are prefilled together
STAGES = ("vision", "prefill", "decode")


class Photographs(NamedTuple):
    """A folder of JPEG files; so many are distinct, and the others are links to them."""

    megapixels: str
    distinct: int
    files: int


FOLDERS = {"half": Photographs("0.5 MP", 48, 4096), "phone": Photographs("12 MP", 12, 768)}
TINY = {name: Photographs("224 px", 3, 40) for name in FOLDERS}
#: Each run's folder and options, by its name. The first run compiles kernels.
RUNS: dict[str, tuple[str, ...]] = {
    "0.5 MP, first run": ("half",),
    "0.5 MP": ("half",),
    "0.5 MP, fp8": ("half", "--quantize", "fp8"),
    "0.5 MP, 512 rows": ("half", "--batch-size", "512"),
    "12 MP": ("phone",),
    "12 MP, --fast-decode": ("phone", "--fast-decode"),
}


def files(device: torch.device, *, tiny: bool) -> Iterator[tuple[str, Any]]:
    """Rates of commands, beside the rates of their models alone."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        for photographs, made in (TINY if tiny else FOLDERS).items():
            make_photographs(folder / photographs, made)
        model = "demo"
        if not tiny:
            model = str(folder / "3b")
            with device:
                make(folder / "3b", generation=1, resolution=224)
        for run, (images, *options) in RUNS.items():
            if "fp8" in options and device.type != "cuda":
                continue
            options += ["--model", model, "--device", str(device)]
            yield run, measured(folder, folder / images, options)


def measured(folder: Path, images: Path, options: list[str]) -> dict[str, float]:
    """A command's summary, in images per second and milliseconds of a group."""
    command = [sys.executable, "-m", "pgcli", "caption", str(images), *options]
    command += ["--max-new-tokens", "16", "--overwrite", "--quiet"]
    command += ["-o", str(folder / "rows.jsonl"), "--log-format", "json"]
    run = subprocess.run(command, check=True, cwd=ROOT, stderr=subprocess.PIPE)
    values = json.loads(run.stderr.splitlines()[-1])
    rows, seconds = values["rows"], values["seconds"]
    busy = sum(seconds[stage] for stage in STAGES)
    return {
        "images/s": round(rows / seconds["answering"], 1),
        "model alone": round(rows / busy, 1),
        "busy": round(busy / seconds["answering"], 3),
        "seconds of waiting for images": seconds["waited_for_images"],
        "seconds of loading": seconds["loading"],
    } | {f"{stage}, ms a group": round(1000 * seconds[stage] * GROUP / rows, 1) for stage in STAGES}


def make_photographs(folder: Path, made: Photographs) -> None:
    """Write the files; several processes draw them, because one of 12 MP takes seconds."""
    folder.mkdir()
    sources = [folder / f"source-{seed}" for seed in range(made.distinct)]
    with ProcessPoolExecutor(PROCESSES) as pool:
        list(pool.map(_write, sources, [made.megapixels] * len(sources)))
    for number in range(made.files):
        os.link(sources[number % made.distinct], folder / f"{number:05}.jpg")
    for source in sources:
        source.unlink()


def _write(file: Path, megapixels: str) -> None:
    seed = int(file.name.removeprefix("source-"))
    file.write_bytes(jpeg(photograph(*SIZES[megapixels], seed=seed)))
