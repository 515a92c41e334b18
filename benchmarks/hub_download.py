"""Measures the download of a 2 GB model from a local Hub, with and without interruption.

    python benchmarks/hub_download.py                       # 4 files of 500 MB, 3 rounds
    python benchmarks/hub_download.py --code ../other       # the code of another checkout

Each download starts with an empty cache. `cut` breaks every connection once, halfway through its
file; `killed` sends SIGKILL after half of all bytes and runs the same command again. Prints one
JSON object: seconds of each download, and the bytes that were sent more than once.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
from safetensors.numpy import save  # noqa: E402

from tests.support.hub_server import Hub  # noqa: E402

NAME = "somebody/large"
CLIENT = "import sys; from pgcli.checkpoints.find import find; find(sys.argv[1])"


def main() -> None:
    options = _options()
    with TemporaryDirectory(dir=options.scratch) as scratch:
        files = _files(options.files, options.megabytes)
        report = {
            mode: _measure(mode, files, options, Path(scratch))
            for mode in ("whole", "cut", "killed")
        }
    report["whole"]["median_seconds"] = median(report["whole"]["seconds"])
    print(json.dumps(report, indent=2))


def _measure(
    mode: str, files: dict[str, bytes], options: argparse.Namespace, scratch: Path
) -> dict[str, list[float]]:
    seconds, again = [], []
    for _ in range(options.rounds if mode == "whole" else 1):
        with Hub() as hub, TemporaryDirectory(dir=scratch) as home:
            hub.add(NAME, files)
            total = sum(map(len, files.values()))
            if mode == "cut":
                for name in files:
                    hub.cut_after[name] = [len(files[name]) // 2]
            began = time.perf_counter()
            if mode == "killed":
                _kill_halfway(hub, total, options.code, home)
            _client(hub, options.code, home).wait()
            seconds.append(round(time.perf_counter() - began, 2))
            again.append(hub.sent_bytes.total() - total)
    return {"seconds": seconds, "bytes_sent_again": again}


def _files(count: int, megabytes: int) -> dict[str, bytes]:
    """A sharded checkpoint; only the names and the headers of its files matter."""
    names = [f"model-{n:05}-of-{count:05}.safetensors" for n in range(1, count + 1)]
    index = {"weight_map": {f"weight{n}": name for n, name in enumerate(names)}}
    shards = {
        name: save({f"weight{n}": np.full(megabytes * 10**6, n, np.uint8)})
        for n, name in enumerate(names)
    }
    small = {"config.json": b'{"model_type": "paligemma"}', "tokenizer.json": b"{}"}
    return small | {"model.safetensors.index.json": json.dumps(index).encode()} | shards


def _client(hub: Hub, code: Path, home: str) -> subprocess.Popen[bytes]:
    known = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    known |= {"HF_ENDPOINT": hub.url, "HF_HOME": home, "PYTHONPATH": str(code.resolve())}
    return subprocess.Popen([sys.executable, "-P", "-c", CLIENT, NAME], env=known, cwd=home)


def _kill_halfway(hub: Hub, total: int, code: Path, home: str) -> None:
    with _client(hub, code, home) as client:
        while hub.sent_bytes.total() < total // 2 and client.poll() is None:
            time.sleep(0.002)
        client.send_signal(signal.SIGKILL)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--code", type=Path, default=ROOT)
    parser.add_argument("--files", type=int, default=4)
    parser.add_argument("--megabytes", type=int, default=500, help="size of each file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scratch", help="folder for the caches; the system's by default")
    return parser.parse_args()


if __name__ == "__main__":
    main()
