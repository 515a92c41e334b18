"""Measures the start of a run over a long manifest, and the resume of a run.

    .venv/bin/python benchmarks/resume.py                  # a million rows of JSON lines
    .venv/bin/python benchmarks/resume.py --rows 100000

Runs are whole commands with a pretended model. This program writes most of the saved rows, in the
same form as a run. Prints wall and processor seconds from the command's start to its first row,
and to its end if all rows are saved.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

from benchmarks.measure import ROOT, options
from pgcli.run.comparison import STAMP_BYTES

IMAGES, FIRST_ROWS = 100, 1000
PROGRAM = """
import sys
from pgcli.run.workers import work
from tests.support import pretend
work.MOST_ON_CPU = 1  # the pretended model is in this process
sys.exit(pretend.main())
"""
OPTIONS = "--model demo --no-timing --quiet --workers 0 -o out.jsonl"


def make_manifest(rows: int) -> None:
    """Write `rows.jsonl` and the images that it names."""
    for number in range(IMAGES):
        Image.new("RGB", (32, 32 + number % 5)).save(f"{number:03}.png")
    with Path("rows.jsonl").open("w") as file:
        for number in range(rows):
            file.write(f'{{"id": "r{number}", "image": "{number % IMAGES:03}.png"}}\n')


def save_rows(rows: int) -> None:
    """Append rows to the output until it has so many."""
    output = Path("out.jsonl")
    lines = output.read_bytes().splitlines(keepends=True)
    with output.open("wb") as file:
        file.writelines(lines[:FIRST_ROWS])
        for number in range(FIRST_ROWS, rows):
            like = number % IMAGES
            old, new = (b'"index":%d,"id":"r%d"' % (n, n) for n in (like, number))
            file.write(lines[like].replace(old, new))
    stamps = Path("out.jsonl.pgcli/inputs/images")
    known = stamps.read_bytes()[: IMAGES * STAMP_BYTES]
    stamps.write_bytes((known * -(-rows // IMAGES))[: rows * STAMP_BYTES])


def run(*, to_row: int | None) -> tuple[float, float]:
    """Seconds and processor seconds to the first row, or of a whole command.

    The command is killed once the output has `to_row` more rows.
    """
    begun, output, began = Path("begun"), Path("out.jsonl"), time.monotonic()
    begun.unlink(missing_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "caption", "rows.jsonl", *OPTIONS.split()],
        env=os.environ | {"PYTHONPATH": str(ROOT), "PRETEND_BEGUN": str(begun)},
    )
    if to_row is not None:
        while not begun.exists() and process.poll() is None:
            time.sleep(0.005)
        elapsed = time.monotonic() - began
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        processor = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        while to_row and (not output.exists() or output.read_bytes().count(b"\n") < to_row):
            time.sleep(0.1)
        process.send_signal(signal.SIGKILL)
        process.wait()
        return elapsed, processor
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, status
    return time.monotonic() - began, usage.ru_utime + usage.ru_stime


def make_run(rows: int) -> None:
    """Write a manifest, and `out.jsonl` as a complete run over it leaves it."""
    make_manifest(rows)
    if rows > FIRST_ROWS:
        run(to_row=FIRST_ROWS)
        save_rows(rows)
    run(to_row=None)


def report(what: str, seconds: tuple[float, float]) -> None:
    sys.stdout.write(f"{what}: {seconds[0]:.1f} s, {seconds[1]:.1f} s processor time\n")
    sys.stdout.flush()


def main() -> None:
    rows = options(__doc__, rows=1_000_000).rows
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        make_manifest(rows)
        report("start to the first row", run(to_row=FIRST_ROWS))
        save_rows(rows // 2)
        report("half saved: to the first new row", run(to_row=0))
        save_rows(rows)
        report("all saved: to the end", run(to_row=None))
        os.chdir("/")


if __name__ == "__main__":
    main()
