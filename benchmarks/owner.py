"""Measures the cost of the owner of an output for each row that its engines send.

    python benchmarks/owner.py                    # 20,000 rows of two engines
    python benchmarks/owner.py --rows 100000 --engines 8

Runs are whole commands with engines without a model, which answer at once; engines are forks, which
start in milliseconds. Prints a JSON object: the owner's processor time per row while it receives
and saves rows, rows per second of wall time, and the owner's peak memory; medians, with the lowest
and the highest round. Engines share the cores with the owner, which limits the rows per second on a
small machine, but not the processor time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.measure import ROOT, options
from benchmarks.resume import make_manifest

PROGRAM = """
import json, multiprocessing, sys, time
from benchmarks.measure import peak
from pgcli.run.workers import engines
from tests.support import pretend

def messages(workers):
    clock, processor = time.perf_counter(), time.process_time()
    yield from real(workers)
    used = [time.perf_counter() - clock, time.process_time() - processor]
    sys.stdout.write(json.dumps([*used, peak()]))

real, engines.Workers.messages = engines.Workers.messages, messages
engines.start_method = lambda slots: multiprocessing.get_context("fork")
sys.exit(pretend.main())
"""
OPTIONS = "--model demo --no-timing --quiet --workers 0 --overwrite -o out.jsonl"


def run(engines: int) -> tuple[float, float, int]:
    """Wall and processor seconds of the owner from its engines' start to their end, and its peak
    memory in bytes."""
    words = ["caption", "rows.jsonl", "--engines", str(engines), *OPTIONS.split()]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PROGRAM, *words]
    done = subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE)
    clock, processor, memory = json.loads(done.stdout)
    return clock, processor, memory


def spread(values: list[float]) -> list[float]:
    """The median, the lowest and the highest."""
    return [round(value, 1) for value in (median(values), min(values), max(values))]


def main() -> None:
    chosen = options(__doc__, rows=20_000, engines=2, rounds=5)
    rows = chosen.rows
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        make_manifest(rows)
        runs = [run(chosen.engines) for _ in range(chosen.rounds + 1)][1:]
        saved = Path("out.jsonl").read_bytes().count(b"\n")
        assert saved == rows, f"{saved} of {rows} rows were saved"
        os.chdir("/")
    measured = {
        "rows": rows,
        "engines": chosen.engines,
        "microseconds_of_processor_a_row": spread([used / rows * 1e6 for _, used, _ in runs]),
        "rows_per_second": spread([rows / clock for clock, _, _ in runs]),
        "peak_megabytes": spread([memory / 2**20 for _, _, memory in runs]),
    }
    sys.stdout.write(json.dumps(measured, indent=1) + "\n")


if __name__ == "__main__":
    main()
