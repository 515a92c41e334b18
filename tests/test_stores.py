"""Pictures in stores of the cloud are what the same ones in a folder are."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgcli.errors import NoInputError, UsageError
from pgcli.images import Limits, Square, look
from pgcli.remote import Reach
from pgcli.sources import Reading, open_sources
from tests.awkward import drawing, encoded
from tests.stores import S3, Files, Google, Hub, served

ROOT = Path(__file__).parent.parent
PNG, JPEG = encoded(drawing(), "PNG"), encoded(drawing(), "JPEG")
#: Names that sort otherwise where folders are sorted apart, and that an address must escape.
PICTURES = {
    "a/b c.png": PNG,
    "a-b.jpg": JPEG,
    "a/é#?%41.png": PNG,
    "z.jpg": JPEG,
    "broken.png": b"x",
}
HIDDEN = {".h/x.png": PNG, "a/.x.png": PNG, "notes.txt": b"no picture"}


def rows_of_tar() -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as archive:
        for name, data in (("0.png", PNG), ("0.json", b'{"n": 1}'), ("1.jpg", JPEG)):
            header = tarfile.TarInfo(name)
            header.size = len(data)
            archive.addfile(header, io.BytesIO(data))
    return held.getvalue()


def parquet(count: int) -> bytes:
    held = io.BytesIO()
    images = [{"bytes": PNG, "path": f"{n}.png"} for n in range(count)]
    pq.write_table(pa.table({"image": images, "label": list(range(count))}), held)
    return held.getvalue()


LINES = "".join(json.dumps({"image": name}) + "\n" for name in ("z.jpg", "a/é#?%41.png", "no.png"))
FILES = {
    **{f"photos/{name}": data for name, data in (PICTURES | HIDDEN).items()},
    "photos/rows.jsonl": LINES.encode(),
    "sets/x.tar": rows_of_tar(),
    "parts/0.parquet": parquet(2),
    "parts/deep/1.parquet": parquet(1),
}


@contextmanager
def in_moto(files: Files) -> Iterator[str]:
    """The address of moto's S3 with these files."""
    server_of = pytest.importorskip("moto.server", reason="moto[server] is not installed")
    boto3 = pytest.importorskip("boto3", reason="boto3 is not installed")
    server = server_of.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    endpoint = "http://{}:{}".format(*server.get_host_and_port())
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **keys)
    client.create_bucket(Bucket="pictures")
    for name, data in files.items():
        client.put_object(Bucket="pictures", Key=name.removeprefix("pictures/"), Body=data)
    try:
        yield endpoint
    finally:
        server.stop()


class Place(NamedTuple):
    """Where files are in a store, and the environment that leads there."""

    base: str
    environment: dict[str, str]


def place(kind: str, endpoint: str) -> Place:
    bases = {"gs": "gs://anonymous@pictures", "hf": "hf://datasets/somebody/pictures"}
    environment = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "STORAGE_EMULATOR_HOST": endpoint,
        "HF_ENDPOINT": endpoint,
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",
        "HF_TOKEN": "secret",
    }
    return Place(bases.get(kind, "s3://pictures"), environment)


@pytest.fixture(scope="module", params=["moto", "s3", "gs", "hf"])
def store(request: pytest.FixtureRequest) -> Iterator[Place]:
    files = {f"pictures/{name}": data for name, data in FILES.items()}
    kinds = {"s3": S3, "gs": Google, "hf": Hub}
    kind = request.param
    with in_moto(files) if kind == "moto" else served(kinds[kind], files) as endpoint:
        yield place(kind, endpoint)


MANY = """
import json, sys
from tests import pretend
for arguments in json.loads(sys.argv[1]):
    sys.argv[1:] = arguments
    print(pretend.main())
"""


def ran(commands: list[list[str]], environment: dict[str, str], cwd: Path) -> list[str]:
    """The exit codes of several commands in one process, which takes a second to start."""
    run = subprocess.run(
        [sys.executable, "-c", MANY, json.dumps(commands)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PGCLI_QUIET": "1"} | environment,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.split()


def command(source: str, output: str, *more: str) -> list[str]:
    options = ["--allow-urls", "--no-timing", "--model", "demo"]
    return ["caption", source, "-o", output, *options, *more]


def rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def local(tmp_path: Path) -> Path:
    root = tmp_path / "local"
    for name, data in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


SOURCES = ["photos", "photos/**/*.png", "photos/*.jpg", "photos/rows.jsonl", "sets/x.tar", "parts"]


def test_rows_are_those_of_the_same_pictures_in_a_folder(store: Place, tmp_path: Path) -> None:
    base = local(tmp_path)
    commands = []
    for number, source in enumerate(SOURCES):
        keep = ["--keep", "n"] if source.endswith(".tar") else []
        commands.append(command(f"{base}/{source}", f"here{number}.jsonl", *keep))
        commands.append(command(f"{store.base}/{source}", f"there{number}.jsonl", *keep))
    codes = ran(commands, store.environment, tmp_path)
    assert codes[::2] == codes[1::2]
    shown = store.base.replace("anonymous@", "anonymous@")
    for number, source in enumerate(SOURCES):
        here, there = (
            rows(tmp_path / f"here{number}.jsonl"),
            rows(tmp_path / f"there{number}.jsonl"),
        )
        assert len(there) >= 2, source
        for row in here:
            row["image"] = row["image"].replace(str(base), shown)
            row["id"] = row["id"].replace(str(base), shown)
            row["error_message"] = row["error_message"] and told(row["error"])
        for row in there:
            row["error_message"] = row["error_message"] and told(row["error"])
        assert there == here, source


def told(code: str) -> str:
    """Messages of a file and of an address differ; their codes do not."""
    return code


def test_no_token_is_in_any_row_or_record(store: Place, tmp_path: Path) -> None:
    ran([command(f"{store.base}/photos", "out.jsonl")], store.environment, tmp_path)
    everything = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert everything
    assert not [file for file in everything if b"secret" in file.read_bytes()]
