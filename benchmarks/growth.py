"""Measures time and resident memory of runs with increasing numbers of rows.

    python benchmarks/growth.py                          # 1,000 to 8,000 drawings
    python benchmarks/growth.py --rows 1000000           # one long run
    python benchmarks/growth.py --rows 1000000 --minutes 10

Each run is a process of its own over a manifest that repeats the same drawings. Prints one JSON
object per run: rows, seconds without start-up, seconds per row, and the resident memory of the
process with the model, in MB, at ten times after its first rows. A run that is stopped after
`--minutes` prints the number of rows that it wrote.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep

from benchmarks.drawings import draw

DRAWINGS = 500
MOMENTS = 10
SECONDS_BETWEEN_LOOKS = 0.5


def main() -> None:
    options = _options()
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        names = [file.name for file in draw(folder, DRAWINGS)]
        for rows in options.rows:
            manifest = folder / f"{rows}.jsonl"
            manifest.write_text("".join(_lines(rows, names)))
            print(json.dumps(_run(manifest, rows, options.minutes)), flush=True)


def _lines(rows: int, names: Sequence[str]) -> Iterator[str]:
    for number, name in zip(range(rows), cycle(names), strict=False):
        yield json.dumps({"id": str(number), "image": name}) + "\n"


def _run(manifest: Path, rows: int, minutes: float | None) -> dict[str, object]:
    output = manifest.with_suffix(".rows.jsonl")
    command = [sys.executable, "-m", "pgcli", "caption", str(manifest), "--model", "demo"]
    began = monotonic()
    process = subprocess.Popen([*command, "-o", str(output)], stderr=subprocess.PIPE, text=True)
    samples: list[int] = []
    while process.poll() is None:
        if output.exists() and output.stat().st_size:
            samples.append(_resident_bytes(process.pid))
        if minutes is not None and monotonic() - began > 60 * minutes:
            process.send_signal(signal.SIGINT)
        sleep(SECONDS_BETWEEN_LOOKS)
    log = process.stderr.read() if process.stderr else ""
    with output.open("rb") as lines:
        written = sum(1 for _ in lines)
    found: dict[str, object] = {"rows": rows, "written": written}
    timed = re.search(r"time: ([\d.]+) s, of which ([\d.]+) s", log)
    if timed:
        seconds = float(timed[1]) - float(timed[2])
        found |= {"seconds": round(seconds, 2), "ms_a_row": round(1000 * seconds / rows, 3)}
    every = max(1, len(samples) // MOMENTS)
    return found | {"resident_mb": [sample // 10**6 for sample in samples[:-1:every]]}


def _resident_bytes(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:  # it has just ended
        return 0
    known = re.search(r"VmRSS:\s+(\d+) kB", status)
    return int(known[1]) * 1024 if known else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1000, 2000, 4000, 8000])
    parser.add_argument("--minutes", type=float, help="time limit of each run")
    return parser.parse_args()


if __name__ == "__main__":
    main()
