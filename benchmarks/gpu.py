"""Benchmarks pgcli on a GPU, stage by stage, with random weights of the 3b models.

    python benchmarks/gpu.py --out gpu.json                  # all stages, about ten minutes
    python benchmarks/gpu.py --only turns --seconds 120
    python benchmarks/gpu.py --tiny                          # a smoke test on a CPU, in seconds

Each stage has its own process, which is ended after its share of `--seconds`, so that a stage that
fails or hangs costs only itself. Measurements are in the JSON file as soon as they are made, and
are printed at the end. Programs alternate (A B B A), after one batch each to warm up.

The stages: `versions`; `files`: whole commands from photographs to rows; `parts`: products, kernels
and the vision tower, each alone; `waits`: synchronizations, kernels and the busy share of one
batch; `turns`: recorded, eager and plain steps and transformers, alternately, and `turns2` the same
for PaliGemma 2. `pgcli bench` compares one model with transformers; `pytest -m gpu` tests the
kernels.
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

#: The stages in order, with their shares of the time.
SHARES = {
    "versions": 0.02,
    "files": 0.36,
    "parts": 0.12,
    "waits": 0.06,
    "turns": 0.26,
    "turns2": 0.18,
}


def main() -> None:
    args = options(
        __doc__,
        only=str,  # only this stage, with all the time
        seconds=600.0,  # for all stages together
        out=Path("gpu.json"),
        device="auto",
        tiny=False,
        stage=str,  # set in the stage's own process
    )
    if args.stage:
        from benchmarks.gpu_stages import STAGES, Setup

        for name, value in STAGES[args.stage](Setup.make(args.device, tiny=args.tiny)):
            print(json.dumps([name, value]), flush=True)
        return
    results: dict[str, Any] = {}
    for stage in [args.only] if args.only else list(SHARES):
        share = 1.0 if args.only else SHARES[stage]
        results[stage] = {}
        for name, value in measured(stage, args, share * args.seconds):
            results[stage][name] = value
            args.out.write_text(json.dumps(results, indent=1))
    print(args.out.read_text())


def measured(stage: str, args: argparse.Namespace, seconds: float) -> Any:
    """The names and values that a stage prints in its process, and how the process ended."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--stage", stage, "--device", args.device]
    command += ["--tiny"] if args.tiny else []
    start = perf_counter()
    with (args.out.with_suffix(f".{stage}.log")).open("w+", encoding="utf-8") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True)
        timer = threading.Timer(seconds, process.kill)
        timer.start()
        assert process.stdout is not None
        for line in process.stdout:
            try:
                yield json.loads(line)
            except ValueError:
                continue  # printed by a library
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
