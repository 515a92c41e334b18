"""Measures images/s of runs over a folder, a WebDataset tar and S3, alternately.

    python benchmarks/inputs.py                      # 1,000 drawings, 4 rounds

S3 is the tests' server in a process on this machine; its half millisecond per image uses the run's
cores. Prints one JSON object: images/s of every run from its summary, each kind's median relative
to the folder's, and whether all answers are equal.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.drawings import draw
from benchmarks.measure import ROOT, options

KINDS = ("folder", "tar", "s3")
#: Any keys are accepted; a fixed region saves the client from looking it up.
KEYS = {
    "AWS_ACCESS_KEY_ID": "any",
    "AWS_SECRET_ACCESS_KEY": "any",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
SERVER = """
import sys
from pathlib import Path
from tests.support.stores import S3, serve

files = {f"drawings/{file.name}": file.read_bytes() for file in Path(sys.argv[1]).iterdir()}
with serve(S3, files) as address:
    print(address, flush=True)
    sys.stdin.read()
"""


def main() -> None:
    args = options(__doc__, count=1_000, rounds=4)
    with TemporaryDirectory() as scratch, ExitStack() as stack:
        folder, archive = Path(scratch) / "drawings", Path(scratch) / "drawings.tar"
        folder.mkdir()
        files = draw(folder, args.count)
        with tarfile.open(archive, "w") as tar:
            for file in files:
                tar.add(file, file.name)
        address = stack.enter_context(_served(folder))
        sources = {"folder": str(folder), "tar": str(archive), "s3": "s3://drawings"}
        output = Path(scratch) / "rows.jsonl"
        rates: dict[str, list[float]] = {kind: [] for kind in KINDS}
        answers: dict[str, list[str]] = {}
        for number in range(args.rounds):
            for kind in KINDS if number % 2 else KINDS[::-1]:
                rates[kind].append(_run(sources[kind], output, address))
                answers[kind] = [
                    json.loads(line)["answer"] for line in output.read_text().splitlines()
                ]
    medians = {kind: median(of_runs) for kind, of_runs in rates.items()}
    shares = {kind: round(rate / medians["folder"], 3) for kind, rate in medians.items()}
    alike = all(of_kind == answers["folder"] for of_kind in answers.values())
    report = {"images_per_second": rates, "share_of_folder": shares, "answers_alike": alike}
    print(json.dumps(report, indent=2))


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    """The address of a server with the folder's files, like S3."""
    command = [sys.executable, "-c", SERVER, str(folder)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.terminate()


def _run(source: str, output: Path, address: str) -> float:
    """Images/s of a run over the source."""
    command = [sys.executable, "-m", "pgcli", "caption", source, "--model", "demo"]
    command += ["-o", str(output), "--overwrite"]
    if source.startswith("s3:"):
        command += ["--allow-urls", "--allow-private-hosts"]
    known = os.environ | KEYS | {"AWS_ENDPOINT_URL": address}
    log = subprocess.run(command, check=True, stderr=subprocess.PIPE, text=True, env=known).stderr
    match = re.search(r"([\d.,]+) images/s", log)
    assert match is not None, log
    return float(match[1].replace(",", ""))


if __name__ == "__main__":
    main()
