"""Measures this program on a GPU, stage by stage, with random weights of the 3b models.

    python benchmarks/gpu.py --out gpu.json                  # all stages, about ten minutes
    python benchmarks/gpu.py --only turns --seconds 120
    python benchmarks/gpu.py --tiny                          # a few seconds on a CPU: does it run?

Each stage is a process of its own, which is ended after its share of `--seconds`, so that a stage
that fails or hangs costs only itself. What a stage has measured is in the JSON file at once, which
is printed at the end. Programs are compared in turns, A B B A, after a batch each to warm up.

The stages: `versions` with the attention backends of each mask and head size; `parity` of a layer
of each generation with float64, and the GPU tests; `waits`: synchronizations, kernels and the busy
share of one batch; `turns` of recorded, eager and plain steps and transformers, and `turns2` of the
second generation; MLPs `quantized` to 8 bits. `pgcli bench` measures the rest: the roofs of
products and memory, and files to rows.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.measure import ROOT, options

#: The stages in their order, with their shares of the time.
SHARES = {
    "versions": 0.05,
    "parity": 0.2,
    "waits": 0.15,
    "turns": 0.3,
    "turns2": 0.2,
    "quantized": 0.1,
}


def main() -> None:
    given = options(
        __doc__,
        only=str,  # this stage, with all the time
        seconds=600.0,  # for all stages together
        out=Path("gpu.json"),
        device="auto",
        tiny=False,
        stage=str,  # in the process that measures it
    )
    if given.stage:
        from benchmarks.gpu_stages import STAGES, Setup

        for name, value in STAGES[given.stage](Setup.make(given.device, tiny=given.tiny)):
            print(json.dumps([name, value]), flush=True)
        return
    results: dict[str, Any] = {}
    for stage in [given.only] if given.only else list(SHARES):
        share = 1.0 if given.only else SHARES[stage]
        results[stage] = {}
        for name, value in measured(stage, given, share * given.seconds):
            results[stage][name] = value
            given.out.write_text(json.dumps(results, indent=1))
    print(given.out.read_text())


def measured(stage: str, given: argparse.Namespace, seconds: float) -> Any:
    """The names and values that a stage prints in its process, and how it ended."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--stage", stage, "--device", given.device]
    command += ["--tiny"] if given.tiny else []
    start = perf_counter()
    with (given.out.with_suffix(f".{stage}.log")).open("w+", encoding="utf-8") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True)
        timer = threading.Timer(seconds, process.kill)
        timer.start()
        assert process.stdout is not None
        for line in process.stdout:
            try:
                yield json.loads(line)
            except ValueError:
                continue  # a library printed it
        code = process.wait()
        timer.cancel()
        spent = round(perf_counter() - start, 1)
        if code:
            log.seek(0)
            last = (log.read().strip().splitlines() or [""])[-1]
            reason = f"ended after {spent} s" if spent >= seconds else f"failed: {last}"
            yield "problem", reason
        yield "seconds", spent


if __name__ == "__main__":
    main()
