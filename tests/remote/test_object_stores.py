"""Images in S3, Google Cloud Storage and the Hub give the rows of a local folder."""

from __future__ import annotations

import gzip
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgcli.errors import NoInputError, PgcliError, UsageError
from pgcli.records import Item
from pgcli.remote import RemoteError, UrlReader, object_stores
from pgcli.remote.object_stores import profile_keys
from pgcli.sources.name_filter import NameFilter
from pgcli.sources.open_sources import open_sources
from pgcli.sources.patterns import glob_files
from pgcli.sources.read_options import ReadOptions
from pgcli.sources.remote_files import glob_matches
from tests.support.awkward import drawing, encoded
from tests.support.runs import heed_signals
from tests.support.stores import S3, Azure, Files, Google, Hub, serve
from tests.support.time_limits import ends_soon, scaled

ROOT = Path(__file__).parents[2]
PNG, JPEG = encoded(drawing(), "PNG"), encoded(drawing(), "JPEG")
#: Names whose order differs if folders are sorted apart, and that a URL has to quote.
IMAGES = {
    "a/b c.png": PNG,
    "a-b.jpg": JPEG,
    "a/é#?%41.png": PNG,
    "z.jpg": JPEG,
    "broken.png": b"x",
}
HIDDEN = {".h/x.png": PNG, "a/.x.png": PNG, "notes.txt": b"not an image"}


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
    **{f"photos/{name}": data for name, data in (IMAGES | HIDDEN).items()},
    "photos/rows.jsonl": LINES.encode(),
    "sets/x.tar": rows_of_tar(),
    "sets/y.tar.gz": gzip.compress(rows_of_tar()),
    "sets/z.txt": b"no rows",
    "parts/0.parquet": parquet(2),
    "parts/deep/1.parquet": parquet(1),
}


@contextmanager
def in_moto(files: Files) -> Iterator[str]:
    """The URL of an S3 server of moto with these files."""
    server_of = pytest.importorskip("moto.server", reason="moto[server] is not installed")
    boto3 = pytest.importorskip("boto3", reason="boto3 is not installed")
    server = server_of.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    endpoint = "http://{}:{}".format(*server.get_host_and_port())
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **keys)
    client.create_bucket(Bucket="images")
    for name, data in files.items():
        client.put_object(Bucket="images", Key=name.removeprefix("images/"), Body=data)
    try:
        yield endpoint
    finally:
        server.stop()


class StoreLocation(NamedTuple):
    """The URL of files in a store, and the environment that reads them."""

    base: str
    environment: dict[str, str]


def locate_store(kind: str, endpoint: str) -> StoreLocation:
    bases = {
        "gs": "gs://anonymous@images",
        "az": "az://images",
        "hf": "hf://datasets/somebody/images",
    }
    environment = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "STORAGE_EMULATOR_HOST": endpoint,
        "AZURE_STORAGE_ENDPOINT": f"{endpoint}/account",
        "AZURE_STORAGE_ACCOUNT_NAME": "account",
        "AZURE_STORAGE_ACCOUNT_KEY": "a2V5",
        "HF_ENDPOINT": endpoint,
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",
        "HF_TOKEN": "secret",
    }
    return StoreLocation(bases.get(kind, "s3://images"), environment)


@pytest.fixture(
    scope="module",
    params=["moto", "s3", "hf", *(pytest.param(x, marks=pytest.mark.slow) for x in ("gs", "az"))],
)
def store(request: pytest.FixtureRequest) -> Iterator[StoreLocation]:
    files = {f"images/{name}": data for name, data in FILES.items()}
    kinds = {"s3": S3, "gs": Google, "az": Azure, "hf": Hub}
    kind = request.param
    with in_moto(files) if kind == "moto" else serve(kinds[kind], files) as endpoint:
        yield locate_store(kind, endpoint)


MANY = """
import json, sys
from tests.support import pretend
for arguments in json.loads(sys.argv[1]):
    sys.argv[1:] = arguments
    print(pretend.main())
"""


def ran(commands: list[list[str]], environment: dict[str, str], cwd: Path) -> list[str]:
    """The exit codes of several commands, run in one process."""
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


SOURCES = ["photos", "photos/**/*.png", "photos/*.jpg", "photos/rows.jsonl"]
SOURCES += ["sets/x.tar", "sets", "parts"]


@pytest.mark.nightly
def test_rows_equal_those_of_a_local_folder(store: StoreLocation, tmp_path: Path) -> None:
    base = local(tmp_path)
    commands = []
    for number, source in enumerate(SOURCES):
        keep = ["--keep", "n"] if source.startswith("sets") else []
        keep += ["--workers", "0" if number else "1"]
        commands.append(command(f"{base}/{source}", f"here{number}.jsonl", *keep))
        commands.append(command(f"{store.base}/{source}", f"there{number}.jsonl", *keep))
    codes = ran(commands, store.environment, tmp_path)
    assert codes[::2] == codes[1::2]
    for number, source in enumerate(SOURCES):
        here, there = (
            rows(tmp_path / f"here{number}.jsonl"),
            rows(tmp_path / f"there{number}.jsonl"),
        )
        assert len(there) >= 2, source
        for row in here:
            row["image"] = row["image"].replace(str(base), store.base)
            row["id"] = row["id"].replace(str(base), store.base)
        for row in (*here, *there):
            del row["error_message"]  # worded differently for files and for URLs
        assert there == here, source
    written = [file.read_bytes() for file in tmp_path.rglob("there*/**/*") if file.is_file()]
    assert written
    assert not any(b"secret" in data for data in written)


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Files]:
    """The files of an S3 server that this process reads."""
    files = {f"images/{name}": data for name, data in FILES.items()}
    with serve(S3, files) as endpoint:
        for name, value in locate_store("s3", endpoint).environment.items():
            monkeypatch.setenv(name, value)
        yield files


def opened(*names: str, **options: Any) -> Any:
    return open_sources(names, ReadOptions(url_reader=UrlReader(), **options))


def test_new_images_come_after_the_pinned_ones(s3: Files, tmp_path: Path) -> None:
    for name in ("s3://images/photos", "s3://images/photos/*.jpg"):
        lists = tmp_path / f"lists{len(name)}"
        lists.mkdir()
        source = opened(name)
        source.pin_files(lambda number, lists=lists: lists / str(number))
        before = [item.path for item in source]
        s3["images/photos/0.jpg"] = JPEG
        gone_on = opened(name)
        gone_on.pin_files(lambda number, lists=lists: lists / str(number))
        assert [item.path for item in gone_on] == [*before, "s3://images/photos/0.jpg"]
        assert gone_on.total == len(before) + 1
        del s3["images/photos/0.jpg"]


def test_names_at_an_address_are_selected(s3: Files) -> None:
    names = NameFilter(include=("*.png", "1.*"), exclude=("a/", "photos/a/*"))
    found = [item.id for item in opened("s3://images/photos", names=names)]
    assert found == ["broken.png"]
    found = [item.id for item in opened("s3://images/photos/*.[pj]*g", names=names)]
    assert found == ["s3://images/photos/broken.png"]
    assert opened("s3://images/parts", names=NameFilter(exclude=("deep/",))).total == 2
    with pytest.raises(NoInputError, match="--include and --exclude leave no image"):
        opened("s3://images/parts", names=NameFilter(include=("x",)))


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("s3://images/none", UsageError, "nothing at s3://images/none"),
        ("s3://nobucket/*.png", UsageError, "nothing at the address"),
        ("s3://images/photos/*.gif", NoInputError, "nothing matches"),
        ("s3://images/photos/notes.txt", UsageError, "neither an image nor a manifest"),
        ("abfs://box/x.png", UsageError, "abfs addresses are not read"),
        ("data:image/png;base64,AAAA", UsageError, "data"),
    ],
)
def test_unusable_store_source_is_a_usage_error(
    s3: Files, name: str, code: type[PgcliError], message: str
) -> None:
    with pytest.raises(code) as problem:
        opened(name)
    assert message in str(problem.value)
    assert problem.value.hint


def test_no_request_is_sent_if_urls_are_not_allowed(monkeypatch: Any) -> None:
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: pytest.fail("a name was resolved"))
    for name in ("s3://images/photos", "hf://datasets/a/b", "https://user:secret@host/x.png"):
        with pytest.raises(UsageError) as problem:
            open_sources([name], ReadOptions())
        assert "--allow-urls" in problem.value.hint
        assert "secret" not in str(problem.value)


def test_remote_manifest_paths_stay_in_its_folder(s3: Files) -> None:
    names = ["z.jpg", "a/../z.jpg", "./z.jpg", "../x.png", "a/../../x.png", "/etc/passwd"]
    names += ["file:///etc/passwd", "..", "a\0b", "ftp://host/x.png", "s3://images/photos/z.jpg"]
    lines = "".join(json.dumps({"image": name}) + "\n" for name in names)
    s3["images/photos/odd.jsonl"] = lines.replace("\\u0000", "%00").encode()
    found = list(opened("s3://images/photos/odd.jsonl"))
    codes = [item.fault.code if item.fault else None for item in found]
    out = "path_not_allowed"
    assert codes == [None] * 3 + [out] * 5 + [None, "url_blocked", None]
    good = {item.path for item in found if item.fault is None and "%00" not in item.id}
    assert good == {"s3://images/photos/z.jpg"}
    assert all(item.path is None for item in found if item.fault)


def test_unreachable_store_is_an_error_row(monkeypatch: Any) -> None:
    for name, value in locate_store("s3", "http://127.0.0.1:9").environment.items():
        monkeypatch.setenv(name, value)
    url_reader = UrlReader()
    with url_reader.fetched(Item(0, "x", "x", "s3://images/x.png")) as item:
        assert item.fault is not None
        assert item.fault.code == "io_error"


@pytest.mark.parametrize("status", [401, 403, 500])
def test_store_error_has_the_code_of_its_status(monkeypatch: Any, status: int) -> None:
    class Refusing(S3):
        def respond(self, path: str, query: Any) -> None:
            self.send(status)

    with serve(Refusing, {}) as endpoint:
        for name, value in locate_store("s3", endpoint).environment.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(RemoteError) as problem:
            UrlReader().read("s3://images/x.png")
    assert problem.value.fault.code == ("io_error" if status == 500 else "permission_denied")
    assert status != 500 or "500 Internal Server Error" in problem.value.fault.message


def test_object_beyond_the_size_limit_is_not_read(s3: Files) -> None:
    s3["images/large.png"] = bytes(5 * 2**20)
    with pytest.raises(RemoteError) as problem:
        UrlReader().read("s3://images/large.png", limit=2**20)
    assert problem.value.fault.code == "too_large"


@pytest.mark.parametrize(
    ("pattern", "path", "is_intentional"),
    [
        ("*.png", "x.png", True),
        ("*.png", "a/x.png", False),
        ("**", "a/b/x.png", True),
        ("**/*.png", "x.png", True),
        ("**/*.png", "a/b/x.png", True),
        ("**/*.png", ".h/x.png", False),
        ("*.png", ".x.png", False),
        (".*.png", ".x.png", True),
        ("a/**/x.png", "a/x.png", True),
        ("a/*/x.png", "a/b/c/x.png", False),
        ("[ab]?.png", "b1.png", True),
    ],
)
def test_remote_glob_equals_local_glob(
    pattern: str, path: str, is_intentional: bool, tmp_path: Path, monkeypatch: Any
) -> None:
    assert glob_matches(path.split("/"), pattern.split("/")) == is_intentional
    monkeypatch.chdir(tmp_path)
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).touch()
    assert (path in glob_files(pattern)) == is_intentional


@pytest.mark.parametrize(("status", "code"), [(403, "permission_denied"), (404, "missing")])
def test_refused_listing_has_the_code_of_its_status(
    monkeypatch: Any, status: int, code: str
) -> None:
    class Refusing(S3):
        def respond(self, path: str, query: Any) -> None:
            self.send(status)

    with serve(Refusing, {}) as endpoint:
        for name, value in locate_store("s3", endpoint).environment.items():
            monkeypatch.setenv(name, value)
        for url in ("s3://images", "s3://images/photos"):
            with pytest.raises(RemoteError) as problem:
                UrlReader().list_files(url)
            assert problem.value.fault.code == code


def test_key_that_looks_like_a_status_is_not_one(s3: Files, monkeypatch: Any) -> None:
    """Errors are classified by type and status, never by a text that holds the key."""
    keys = ["photos/1403 beach.jpg", "photos/404 status: 404.jpg", "photos/timeout 403 .jpg"]
    keys += ["AWS Error ACCESS_DENIED.jpg", "NO_SUCH_KEY/does not exist.jpg"]
    for key in keys:
        s3[f"images/{key}"] = JPEG
        assert UrlReader().read(f"s3://images/{key}") == JPEG
        del s3[f"images/{key}"]
        with pytest.raises(RemoteError) as problem:
            UrlReader().read(f"s3://images/{key}")
        assert problem.value.fault.code == "missing"

    class Failing(S3):
        def respond(self, path: str, query: Any) -> None:
            self.send(500)

    with serve(Failing, {}) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        reader = UrlReader()
        for key in keys[:3]:
            with pytest.raises(RemoteError) as problem:
                reader.read(f"s3://images/{key}")
            assert problem.value.fault.code == "io_error"


def test_aws_profile_keys_are_read_from_the_credentials_file(
    monkeypatch: Any, tmp_path: Path
) -> None:
    file = tmp_path / "credentials"
    file.write_text("[default]\naws_access_key_id = a\naws_secret_access_key = b%\n[other]\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    assert profile_keys() == {"access_key_id": "a", "secret_access_key": "b%"}
    monkeypatch.setenv("AWS_PROFILE", "other")
    assert profile_keys() == {}
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.delenv("AWS_PROFILE")
    assert profile_keys() == {}
    file.write_bytes(b"\xff no ini")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    assert profile_keys() == {}


def test_stalled_store_times_out(monkeypatch: Any) -> None:
    release = threading.Event()

    class Stalling(S3):
        def respond(self, path: str, query: Any) -> None:
            release.wait(20)

    short = {"read_timeout": timedelta(seconds=0.2), "timeout": timedelta(seconds=0.3)}
    monkeypatch.setattr(object_stores, "CLIENT", object_stores.CLIENT | short)
    monkeypatch.setattr(object_stores, "RETRIES", {"max_retries": 0})
    monkeypatch.setattr(object_stores, "SLOW_SECONDS", 0.1)
    with serve(Stalling, {}) as endpoint:
        for name, value in locate_store("s3", endpoint).environment.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(RemoteError) as problem:
            UrlReader().read("s3://images/x.png")
        release.set()
    assert problem.value.fault.code == "timeout"


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An S3 server that accepts connections and answers nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        keys = {"AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y"}
        for name, value in keys.items():
            monkeypatch.setenv(name, value)
        yield


def test_store_that_never_answers_is_a_timeout(silent: None) -> None:
    reader = UrlReader(fetch_seconds=1)
    with ends_soon(), reader.fetched(Item(0, "a", "a", "s3://images/a.png")) as item:
        assert item.fault is not None
        assert item.fault.code == "timeout"


@pytest.mark.nightly
def test_signal_ends_the_wait_for_a_store(silent: None) -> None:
    words = [sys.executable, "-m", "pgcli", "caption", "s3://images/all", "--allow-urls"]
    run = subprocess.Popen(words, cwd=ROOT, preexec_fn=heed_signals)
    try:
        time.sleep(scaled(4))  # while it starts or while it waits: either way it ends
        run.send_signal(signal.SIGTERM)
        assert run.wait(timeout=50) == -signal.SIGTERM
    finally:
        run.kill()
        run.wait(timeout=60)
