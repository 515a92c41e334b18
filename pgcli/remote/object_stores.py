"""What is at `s3`, `gs` and `hf` addresses: files and folders, through pyarrow's filesystems."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from threading import Lock
from typing import Any

from pgcli.errors import UsageError
from pgcli.remote.addresses import scheme_of
from pgcli.remote.errors import DENIED, MISSING, TOO_SLOW, RemoteError, failed

CONNECT_SECONDS = 10
READ_SECONDS = 30
TRIES = 4
GIVE_UP_SECONDS = 60

_SAID = re.compile(
    r"AWS Error ([A-Z_]+)|status:? (?:code )?(\d{3})|HTTP (?:status |Error )?(\d{3})"
)
_IS_DENIED = re.compile(
    r"ACCESS_DENIED|status:? (code )?40[13]|UNAUTHENTICATED|PERMISSION_DENIED|40[13] "
)
_IS_MISSING = re.compile(r"NO_SUCH|NOT_FOUND|does not exist|status:? (code )?404|404 ")


class Stores:
    """The filesystems that addresses lead to, made when they are first asked for."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, str], Any] = {}
        self._lock = Lock()

    def kind(self, address: str) -> str:
        """`file`, `folder`, or `` where there is nothing. Raises `RemoteError`."""
        from pyarrow.fs import FileType

        system, path = self._found(address)
        with translated():
            found = system.get_file_info(path).type
        return {FileType.File: "file", FileType.Directory: "folder"}.get(found, "")

    def names(self, address: str) -> list[str]:
        """The files below a folder, by their paths relative to it, in code-point order."""
        from pyarrow.fs import FileSelector, FileType

        system, path = self._found(address)
        path = path.rstrip("/")
        with translated():
            below = system.get_file_info(FileSelector(path, recursive=True))
        start = len(path) + 1
        return sorted(one.path[start:] for one in below if one.type == FileType.File)

    def open(self, address: str) -> StoredFile:
        """The file, to be read from any place. Raises `RemoteError`."""
        system, path = self._found(address)
        with translated():
            if scheme_of(address) == "hf":  # pyarrow would take a network that fails for no file
                return StoredFile(system.handler.fs.open(path, "rb"))
            return StoredFile(system.open_input_file(path))

    def _found(self, address: str) -> tuple[Any, str]:
        kind, path = scheme_of(address), address.partition("://")[2]
        user, at, bucket = path.partition("/")[0].rpartition("@")
        if kind == "hf":
            bucket, user = "", ""
        elif at:
            path = path[len(user) + 1 :]
        with self._lock:
            key = (kind + user, bucket)
            if key not in self._made:
                with translated():
                    self._made[key] = filesystem(kind, bucket, anonymous=user == "anonymous")
            return self._made[key], path


class StoredFile(io.RawIOBase):
    """A file of a store whose failures are `RemoteError`."""

    def __init__(self, file: Any):
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return int(self._file.tell())

    def seek(self, place: int, whence: int = io.SEEK_SET) -> int:
        with translated():
            return int(self._file.seek(place, whence))

    def readinto(self, room: Any) -> int:
        with translated():
            return int(self._file.readinto(room))

    def close(self) -> None:
        self._file.close()
        super().close()


def filesystem(kind: str, bucket: str, *, anonymous: bool) -> Any:
    """The filesystem of a kind, with the environment's credentials unless `anonymous`."""
    try:
        if kind == "hf":
            from huggingface_hub import HfFileSystem
            from pyarrow.fs import FSSpecHandler, PyFileSystem

            return PyFileSystem(FSSpecHandler(HfFileSystem()))
        if kind == "gs":
            from pyarrow.fs import GcsFileSystem

            limit = timedelta(seconds=GIVE_UP_SECONDS)
            return GcsFileSystem(anonymous=anonymous, retry_time_limit=limit, **emulator())
        return s3(bucket, anonymous=anonymous)
    except ImportError as problem:
        raise UsageError(
            f"the installed pyarrow reads no {kind}:// addresses: {problem}",
            hint="pip install --force-reinstall pyarrow, which brings all of its filesystems",
        ) from problem


def s3(bucket: str, *, anonymous: bool) -> Any:
    """Amazon's store, or what AWS_ENDPOINT_URL names instead."""
    from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem, resolve_s3_region

    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if not endpoint:
        with suppress(OSError):  # what is wrong shows when the bucket is read
            region = resolve_s3_region(bucket)
    where: dict[str, Any] = {}
    if endpoint:
        scheme, _, host = endpoint.rpartition("://")
        where = {"endpoint_override": host.rstrip("/"), "scheme": scheme or "https"}
    return S3FileSystem(
        anonymous=anonymous,
        region=region,
        connect_timeout=CONNECT_SECONDS,
        request_timeout=READ_SECONDS,
        retry_strategy=AwsStandardS3RetryStrategy(max_attempts=TRIES),
        **where,
    )


def emulator() -> dict[str, str]:
    """Where Google's store is pretended, if it is."""
    endpoint = os.environ.get("STORAGE_EMULATOR_HOST", "")
    scheme, _, host = endpoint.rpartition("://")
    return {"endpoint_override": host.rstrip("/"), "scheme": scheme or "http"} if endpoint else {}


@contextmanager
def translated() -> Iterator[None]:
    """Turn whatever is raised within into `RemoteError`: libraries of three kinds are behind it."""
    try:
        yield
    except (RemoteError, UsageError):
        raise
    except Exception as problem:
        text = str(problem)
        status = getattr(getattr(problem, "response", None), "status_code", None)
        if isinstance(problem, FileNotFoundError) or status == 404:
            fault = MISSING
        elif isinstance(problem, PermissionError) or status in (401, 403):
            fault = DENIED
        elif isinstance(problem, TimeoutError) or "timeout" in text.lower():
            fault = TOO_SLOW
        elif _IS_DENIED.search(text):
            fault = DENIED
        elif _IS_MISSING.search(text):
            fault = MISSING
        else:
            said = _SAID.search(text)
            why = next(filter(None, said.groups()), "") if said else type(problem).__name__
            fault = failed(f"the store answered {status or why}")
        raise RemoteError(fault) from problem
