"""Measures this program on a GPU, stage by stage, with random weights of the 3b models.

    python benchmarks/gpu.py --out gpu.json                  # all stages, about ten minutes
    python benchmarks/gpu.py --only turns --seconds 120
    python benchmarks/gpu.py --tiny                          # a few seconds on a CPU: does it run?

Each stage is a process of its own, which is ended after its share of `--seconds`, so that a stage
that fails or hangs costs only itself. What a stage has measured is in the JSON file at once. Prints
a table of the file's values at the end. Programs are compared in turns, A B B A, after a batch each
to warm up. The stages: `versions` with the attention backends of each mask and head size; `parity`
of a layer of each generation with float64, and the GPU tests; `roofs` of products and memory;
`waits`: synchronizations, kernels and the busy share of one batch; `turns` of recorded, eager and
plain steps and transformers, and `turns2` of the second generation; MLPs `quantized` to 8
bits; `files` to rows.
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

#: The stages in their order, with their shares of the time.
SHARES = {
    "versions": 0.05,
    "parity": 0.2,
    "roofs": 0.1,
    "waits": 0.1,
    "turns": 0.22,
    "turns2": 0.13,
    "quantized": 0.08,
    "files": 0.12,
}


def main(arguments: list[str] | None = None) -> None:
    options = parse_options(arguments)
    if options.stage:
        from benchmarks.gpu_stages import STAGES, Setup

        for name, value in STAGES[options.stage](Setup.make(options.device, tiny=options.tiny)):
            print(json.dumps([name, value]), flush=True)
        return
    results: dict[str, Any] = {}
    for stage in [options.only] if options.only else list(SHARES):
        share = 1.0 if options.only else SHARES[stage]
        results[stage] = {}
        for name, value in measured(stage, options, share * options.seconds):
            results[stage][name] = value
            options.out.write_text(json.dumps(results, indent=1))
    for stage, values in results.items():
        print(f"\n{stage}")
        for name, value in values.items():
            print(f"  {name:44} {as_text(value)}")


def measured(stage: str, options: argparse.Namespace, seconds: float) -> Any:
    """The names and values that a stage prints in its process, and how it ended."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--stage", stage, "--device", options.device]
    command += ["--tiny"] if options.tiny else []
    start = perf_counter()
    root = Path(__file__).parent.parent
    with (options.out.with_suffix(f".{stage}.log")).open("w+", encoding="utf-8") as log:
        process = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=log, text=True)
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


def as_text(value: Any) -> str:
    """A value in a line of the table."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {as_text(one)}" for name, one in value.items())
    if isinstance(value, list):
        return " ".join(map(as_text, value))
    return str(value)


def parse_options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=SHARES, help="this stage, with all the time")
    parser.add_argument("--seconds", type=float, default=600, help="for all stages together")
    parser.add_argument("--out", type=Path, default=Path("gpu.json"), help="the file of results")
    parser.add_argument("--device", default="auto", help="cuda, cuda:N or cpu")
    parser.add_argument("--tiny", action="store_true", help="a tiny model, also without a GPU")
    parser.add_argument("--stage", choices=SHARES, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
