"""Measures what a run takes besides its model: engines that answer at once.

    .venv/bin/python benchmarks/driver_overhead.py                    # --engines 2, and --join
    .venv/bin/python benchmarks/driver_overhead.py --kinds folder --rows 20000 60000
    .venv/bin/python benchmarks/driver_overhead.py --profile program  # functions by their time

Each kind of run is made with two numbers of rows, and the difference of their processor times is
that of the rows alone, whatever else the machine does. Printed are microseconds of processor time
for each row, of the program, of all engines and of the processes that decode, and the rows that two
cores can do each second, one of them the program. Images are decoded before, unless `--decode`.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import json
import multiprocessing
import os
import pstats
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from pgcli.images import ImageSpec, pool
from pgcli.records import Answer, DecodedImage, Item, unanswered
from pgcli.run import model
from pgcli.run.workers import engines
from pgcli.tasks import Question

ROOT = Path(__file__).parent.parent
MODEL = "idle@1"
#: The arguments of each kind of run, and its output.
KINDS = {
    "engines": (["--engines", "2"], "rows.jsonl"),
    "parquet": (["--engines", "2"], "rows.parquet"),
    "folder": (["--engines", "2"], "rows/"),
    "join": (["--join", "--engines", "2"], "rows/"),
}
CORES = 2


class IdleEngine:
    """A model that answers at once; its process notes the processor time it has used."""

    label, device, dtype, batch_size, is_large = MODEL, "cpu", "float32", 32, False
    image_stats = SimpleNamespace(hits=0, prompts=0)

    def __init__(self, notes: Path, resolution: int):
        self.spec = ImageSpec(resolution)
        self._notes = notes
        self.batch_limits = self

    def ask(
        self,
        stream: Iterable[tuple[int, DecodedImage]],
        question: Question,
        sampling: object,
        should_stop: Callable[[], bool],
    ) -> Iterator[tuple[int, Answer]]:
        for first, image in stream:
            for row, prompt in enumerate(image.item.prompts, start=first):
                answer = unanswered(image, prompt, task=question.task, model=MODEL)
                yield row, replace(answer, answer="a red circle", tokens=4, finish="stop")

    def summary(self) -> str:
        return ""

    def state_dict(self) -> dict[str, Any]:
        """Called after each chunk."""
        if multiprocessing.parent_process() is not None:
            (self._notes / f"engine-{os.getpid()}").write_text(str(time.process_time()))
        return {}

    def load_state_dict(self, state: object) -> None:
        """Nothing was learned."""


def ready(resolution: int, items: Iterable[Item], *_: object, **__: object) -> Iterator[Any]:
    """The items with pixels that take no time."""
    pixels = np.zeros((resolution, resolution, 3), np.uint8)
    for item in items:
        yield DecodedImage(replace(item, data=None), 8, 8, pixels.copy(), 1.0)


def run(arguments: list[str], notes: Path, resolution: int, *, decodes: bool) -> int:
    """A command with idle engines, in this process, which notes its processor time."""
    from pgcli.cli.main import main

    fork = multiprocessing.get_context("fork")
    engines.start_method = lambda slots: fork  # type: ignore[assignment]
    model.load_engine = lambda *_: IdleEngine(notes, resolution)  # type: ignore[assignment]
    if not decodes:
        pool.decode_ahead = partial(ready, resolution)  # type: ignore[assignment]
    profile = cProfile.Profile(time.process_time)
    if os.environ.get("IDLE_PROFILE") == "program":
        profile.enable()
    code = main(arguments)
    profile.disable()
    if os.environ.get("IDLE_PROFILE") == "program":
        text = io.StringIO()
        pstats.Stats(profile, stream=text).sort_stats("tottime").print_stats(40)
        sys.stderr.write(text.getvalue())
    for child in multiprocessing.active_children():
        child.kill()
        child.join()
    own = resource.getrusage(resource.RUSAGE_SELF)
    others = resource.getrusage(resource.RUSAGE_CHILDREN)
    engine_seconds = sum(float(file.read_text()) for file in notes.glob("engine-*"))
    all_others = others.ru_utime + others.ru_stime
    times = {"program": own.ru_utime + own.ru_stime, "engines": engine_seconds}
    decoders = max(0.0, all_others - engine_seconds)
    (notes / "times.json").write_text(json.dumps(times | {"decoders": decoders}))
    return code


def make_images(file: Path, rows: int) -> None:
    """A table of small images."""
    data = io.BytesIO()
    Image.new("RGB", (8, 8), (200, 30, 30)).save(data, "png")
    column = pa.array([data.getvalue()] * rows, pa.binary())
    pq.write_table(pa.table({"image": column}), file, row_group_size=1000)


def measure(kind: str, rows: int, given: argparse.Namespace) -> dict[str, float]:
    """The processor seconds of a run of this kind, of each kind of process."""
    options, output = KINDS[kind]
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        make_images(folder / "images.parquet", rows)
        words = ["caption", "images.parquet", "--model", "demo", "-o", output, *options]
        words += ["--workers", "2", "--quiet"]
        program = [sys.executable, "-m", "benchmarks.driver_overhead", "--run", scratch]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "IDLE_PROFILE": given.profile}
        program += ["--resolution", str(given.resolution), *(["--decode"] if given.decode else [])]
        subprocess.run(
            [*program, *words],
            cwd=folder,
            env=environment,
            check=True,
        )
        times: dict[str, float] = json.loads((folder / "times.json").read_text())
    return times


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=["engines", "join"])
    parser.add_argument("--rows", type=int, nargs=2, default=[2000, 22_000])
    parser.add_argument("--resolution", type=int, default=112, help="that of the built-in model")
    parser.add_argument("--decode", action="store_true", help="decode small images, too")
    parser.add_argument("--profile", choices=["program"], default="")
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    given, words = parser.parse_known_args()
    if given.run is not None:
        return run(words, given.run, given.resolution, decodes=given.decode)
    print("kind     microseconds a row: program  engines  decoders   rows/s")
    for kind in given.kinds:
        few, many = (measure(kind, rows, given) for rows in sorted(given.rows))
        added = max(given.rows) - min(given.rows)
        program, engines, decoders = (
            (many[name] - few[name]) / added for name in ("program", "engines", "decoders")
        )
        rate = 1 / max(program, (program + engines + decoders) / CORES)
        print(
            f"{kind:8} {program * 1e6:28,.0f} {engines * 1e6:8,.0f} {decoders * 1e6:9,.0f} "
            f"{rate:8,.0f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
