"""The same drawings from a folder, a WebDataset tar and S3: images/s of whole runs, in turns.

    python -m pip install "moto[server]"
    python benchmarks/inputs.py                      # 1,000 drawings, 4 rounds
    python benchmarks/inputs.py --kinds folder tar   # without moto

S3 is moto's server, in a process of its own on this machine: what it computes for an answer is
taken from the cores that the run has. Prints one JSON object: images/s of every run, as its closing
table tells, each kind's median as a share of the folder's, and whether all answers are the same.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from drawings import draw

KINDS = ("folder", "tar", "s3")
BUCKET = "drawings"
#: moto takes any keys; a fixed region keeps the client from looking for one.
KEYS = {
    "AWS_ACCESS_KEY_ID": "any",
    "AWS_SECRET_ACCESS_KEY": "any",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


def main() -> None:
    options = _options()
    with TemporaryDirectory() as scratch, _served("s3" in options.kinds) as address:
        folder, archive = Path(scratch) / "drawings", Path(scratch) / "drawings.tar"
        folder.mkdir()
        files = draw(folder, options.count)
        with tarfile.open(archive, "w") as tar:
            for file in files:
                tar.add(file, file.name)
        if "s3" in options.kinds:
            _upload(files, address)
        sources = {"folder": str(folder), "tar": str(archive), "s3": f"s3://{BUCKET}"}
        output = Path(scratch) / "rows.jsonl"
        rates: dict[str, list[float]] = {kind: [] for kind in options.kinds}
        answers: dict[str, list[str]] = {}
        for number in range(options.rounds):
            for kind in options.kinds if number % 2 else options.kinds[::-1]:
                rates[kind].append(_run(sources[kind], output, address))
                answers[kind] = [
                    json.loads(line)["answer"] for line in output.read_text().splitlines()
                ]
    medians = {kind: median(found) for kind, found in rates.items()}
    first = options.kinds[0]
    shares = {kind: round(found / medians[first], 3) for kind, found in medians.items()}
    alike = all(found == answers[first] for found in answers.values())
    report = {"images_per_second": rates, f"share_of_{first}": shares, "answers_alike": alike}
    print(json.dumps(report, indent=2))


@contextmanager
def _served(is_wanted: bool) -> Iterator[str]:
    """The address of S3 on this machine; an empty text where none is wanted."""
    if not is_wanted:
        yield ""
        return
    serve = (
        "import sys, time; from moto.server import ThreadedMotoServer as S;"
        "s = S(ip_address='127.0.0.1', port=0, verbose=False); s.start();"
        "print(s.get_host_and_port()[1], flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", serve]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # a line for each request
        text=True,
    ) as one:
        assert one.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(one.stdout.readline())}"
        finally:
            one.terminate()


def _upload(files: Sequence[Path], address: str) -> None:
    import boto3

    os.environ.update(KEYS)
    client = boto3.client("s3", endpoint_url=address)
    client.create_bucket(Bucket=BUCKET)
    for file in files:
        client.put_object(Bucket=BUCKET, Key=file.name, Body=file.read_bytes())


def _run(source: str, output: Path, address: str) -> float:
    """Images/s of a run over the source."""
    command = [sys.executable, "-m", "pgcli", "caption", source, "--model", "demo"]
    command += ["-o", str(output), "--overwrite"]
    if source.startswith("s3:"):
        command += ["--allow-urls", "--allow-private-hosts"]
    known = os.environ | KEYS | {"AWS_ENDPOINT_URL": address}
    told = subprocess.run(command, check=True, stderr=subprocess.PIPE, text=True, env=known).stderr
    found = re.search(r"([\d.,]+) images/s", told)
    assert found is not None, told
    return float(found[1].replace(",", ""))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--count", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=4)
    return parser.parse_args()


if __name__ == "__main__":
    main()
