"""Fetches the files of a repository on the Hub into its cache, with huggingface_hub.

A snapshot in the cache serves while the Hub does not answer. Tokens are never shown.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import threading
import uuid
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

from huggingface_hub import (
    HfApi,
    constants,
    errors,
    get_token,
    hf_hub_download,
    snapshot_download,
    try_to_load_from_cache,
)
from huggingface_hub.utils.tqdm import tqdm as HubBar

from pgcli.checkpoints.files import ADAPTER_CONFIG, open_model_file, read_json
from pgcli.checkpoints.weight_files import (
    CONFIG,
    SENTENCEPIECE,
    TOKENIZER,
    Kind,
    file_names,
    required_files,
)
from pgcli.errors import InvalidCheckpoint, ModelUnavailable
from pgcli.printable import first_line, printable

#: Variables that hold a token: the first that is set wins, also over that of `hf auth login`.
TOKEN_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
LOGIN = "`hf auth login`"
#: How long a cancelled download may take to remove its temporary files.
CANCEL_SECONDS = 2.0
#: No branch or tag has such a name, and the cache keeps the commit of each in a file of that name.
INVALID_REVISION = re.compile(r"\A/|\.\.|[\x00-\x20\\]|\A\Z")
COMMIT = re.compile(r"[0-9a-f]{40}")
DIGEST = re.compile(r"[0-9a-f]{64}|[0-9a-f]{40}")
#: The base class of the HTTP errors, whichever HTTP library the client uses.
TRANSPORT_ERROR: Any = errors.HfHubHTTPError.__bases__[0]
#: The client raises ValueError for invalid arguments, and for answers that are not JSON.
HUB_ERRORS = (TRANSPORT_ERROR, OSError, ValueError)
KEPT = "complete files are kept"
#: What to do about an HTTP status.
STATUS_HINTS = {
    403: "see {page}; a fine-grained token needs the right to read this repository",
    407: "the proxy asks for a login: write it into HTTPS_PROXY",
    429: f"wait some minutes; with a token ({LOGIN}) the Hub allows more",
}


class HubFile(NamedTuple):
    """A file of a repository: size in bytes, and the digest that is its name in the cache.

    The digest is the SHA-256 of a large file, and Git's SHA-1 of the blob of a small one.
    """

    name: str
    size: int
    digest: str


@dataclass(frozen=True, slots=True)
class DownloadPlan:
    """A download that is about to start. Sizes are in bytes; `cached` counts files in the cache."""

    name: str
    folder: Path
    total: int
    cached: int
    free: int

    @property
    def missing(self) -> int:
        return self.total - self.cached


class DownloadProgress(Protocol):
    """Receives the progress of one download, in a `with` block; `start` is called at most once.

    `advance` is called by several threads, one at a time, and with a negative count where a file
    starts over.
    """

    def message(self, text: str) -> None: ...

    def start(self, plan: DownloadPlan) -> None: ...

    def advance(self, byte_count: int) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


class Cancelled(Exception):
    """The download was cancelled."""


def snapshot(
    name: str, revision: str | None, *, kind: Kind, progress: DownloadProgress | None
) -> Path:
    """The folder in the cache with the required files of a repository; its name is the commit.

    The Hub is asked which commit the revision is, unless the revision is a commit that the cache
    has. Without `progress` the client draws its own bars. Raises ModelUnavailable and
    InvalidCheckpoint with the remedy.
    """
    revision = constants.DEFAULT_REVISION if revision is None else revision
    if INVALID_REVISION.search(revision):
        raise _no_revision(name, revision)
    cached = None
    with progress or nullcontext():
        try:
            cached = cached_snapshot(name, revision, kind=kind)
            if cached and (constants.HF_HUB_OFFLINE or cached.name == revision):
                return cached
            if constants.HF_HUB_OFFLINE:
                raise _offline(name)
            _check_token()
            commit, files = _list_files(name, revision)
        except HUB_ERRORS as error:
            if cached is None or isinstance(
                error, errors.RevisionNotFoundError | errors.HFValidationError
            ):
                raise _unavailable(name, revision, error) from error
            message = (
                f"{constants.ENDPOINT} does not serve {name} now ({_reason(error)}); "
                f"{cached.name[:12]} from the cache is used"
            )
            if progress is None:
                warnings.warn(printable(message), stacklevel=2)
            else:
                progress.message(message)
            return cached
        try:
            _complete(name, commit, files, kind, progress)
            return _write_ref(name, revision, commit)
        except HUB_ERRORS as error:
            raise _unavailable(name, revision, error) from error


def cached_snapshot(name: str, revision: str, *, kind: Kind) -> Path | None:
    """The folder that the cache has for a revision, if it has all required files."""
    for config in (ADAPTER_CONFIG,) if kind == "adapter" else (CONFIG,):
        file = try_to_load_from_cache(name, config, revision=revision)
        if not isinstance(file, str):
            continue
        folder = Path(file).parent
        try:
            names = required_files(name, kind, file_names(folder), folder.joinpath)
            is_paligemma = config == CONFIG and read_json(Path(file))["model_type"] == "paligemma"
        except (InvalidCheckpoint, KeyError):
            continue
        # the towers of images may have no tokenizer
        if not is_paligemma or {TOKENIZER, *SENTENCEPIECE[:2]} & {*names}:
            return folder
    return None


def token_source() -> str | None:
    """Where the token of this machine comes from: a variable, or a login; None without a token."""
    for variable in TOKEN_VARIABLES:
        if os.environ.get(variable, "").strip():
            return variable
    return LOGIN if get_token() else None


def _check_token() -> None:
    # the client's own message about an invalid token would show it
    token = get_token() or ""
    if not (token.isascii() and token.isprintable()):
        raise ModelUnavailable(
            "the token set on this machine has characters that no token has",
            hint=f"{LOGIN} with a new one, or set HF_TOKEN anew",
        )


def _list_files(name: str, revision: str) -> tuple[str, dict[str, HubFile]]:
    """The commit of a revision, and its files by name. Both become part of paths on this disk."""
    timeout = constants.HF_HUB_ETAG_TIMEOUT
    info = HfApi().model_info(name, revision=revision, files_metadata=True, timeout=timeout)
    if not COMMIT.fullmatch(info.sha or ""):
        raise ValueError(f"{constants.ENDPOINT} does not say which commit it has")
    files = {}
    for entry in info.siblings or ():
        size, digest = entry.size, entry.blob_id or ""
        if entry.lfs is not None:
            size, digest = entry.lfs.size, entry.lfs.sha256
        if not isinstance(size, int) or not DIGEST.fullmatch(digest):
            raise ValueError(f"{constants.ENDPOINT} does not say what {entry.rfilename} contains")
        files[entry.rfilename] = HubFile(entry.rfilename, size, digest)
    return info.sha or "", files


def _complete(
    name: str,
    commit: str,
    files: dict[str, HubFile],
    kind: Kind,
    progress: DownloadProgress | None,
) -> None:
    """Download the required files that the cache lacks.

    Raises InvalidCheckpoint for a file in the cache of another size than on the Hub, and for one
    that arrived damaged, and ModelUnavailable if the disk has not enough free space.
    """
    folder = _repository_folder(name)

    def fetch(file: str) -> Path:
        silent: Any = partial(HubBar, disable=True)
        return Path(hf_hub_download(name, file, revision=commit, tqdm_class=silent))

    wanted = [files[file] for file in required_files(name, kind, files, fetch)]
    missing = []
    for file in wanted:
        blob = folder / "blobs" / file.digest
        if not blob.is_file():
            missing.append(file)
        elif blob.stat().st_size != file.size:
            raise InvalidCheckpoint(
                f"{file.name} in the cache is damaged: it has {blob.stat().st_size:,} bytes, and "
                f"{file.size:,} on the Hub",
                hint=f"delete {blob.resolve()} and run the same command again, which downloads it",
            )
    if missing:
        _start(name, folder.parent, wanted, missing, progress)
    if any(not (folder / "snapshots" / commit / file.name).exists() for file in wanted):
        _download(name, commit, [file.name for file in wanted], progress)
    for file in _damaged(folder / "blobs", missing):
        (folder / "blobs" / file.digest).resolve().unlink()
        (folder / "snapshots" / commit / file.name).unlink(missing_ok=True)
        raise InvalidCheckpoint(
            f"{file.name} arrived damaged: its checksum is not the one that the Hub has",
            hint="the file was deleted: the same command again downloads it",
        )


def _start(
    name: str,
    cache: Path,
    wanted: Sequence[HubFile],
    missing: Sequence[HubFile],
    progress: DownloadProgress | None,
) -> None:
    """Announce the sizes of a download. Raises ModelUnavailable if it does not fit on the disk."""
    total, size = (sum(file.size for file in files) for files in (wanted, missing))
    free = shutil.disk_usage(next(path for path in (cache, *cache.parents) if path.exists())).free
    if size > free:
        raise ModelUnavailable(
            f"{name} needs {_size(size)} more on disk, and {cache} has {_size(free)} free",
            hint="free space there, or set HF_HOME to a folder on a larger disk",
        )
    if progress is not None:
        progress.start(DownloadPlan(name, cache, total, total - size, free))


def _download(name: str, commit: str, files: list[str], progress: DownloadProgress | None) -> None:
    """Download files of a commit into the cache. A signal cancels it; complete files are kept."""
    cancelled = threading.Event()
    pool = ThreadPoolExecutor(1, thread_name_prefix="download")
    job = pool.submit(
        snapshot_download,
        name,
        revision=commit,
        allow_patterns=files,
        tqdm_class=_bar_class(progress, cancelled),
    )
    try:
        job.result()
    except BaseException:  # a signal must not wait for the server
        cancelled.set()
        wait([job], timeout=CANCEL_SECONDS)
        raise
    finally:
        pool.shutdown(wait=False)


def _bar_class(progress: DownloadProgress | None, cancelled: threading.Event) -> type[HubBar]:
    """The class of the client's bars: they report to `progress`, and end a cancelled download.

    `snapshot_download` has two bars of bytes, received and written, which differ for Xet only; the
    larger count is the progress.
    """
    lock = threading.Lock()
    counts: dict[int, int] = {}

    class ReportingBar(HubBar):
        def __init__(self, *values: Any, **options: Any):
            self.has_bytes = options.get("unit") == "B"
            super().__init__(  # type: ignore[no-untyped-call]
                *values, **options | ({"disable": True} if progress else {})
            )

        def update(self, n: float | None = 1) -> bool | None:
            if cancelled.is_set():
                raise Cancelled
            if progress and self.has_bytes:
                with lock:
                    before = max(counts.values(), default=0)
                    counts[id(self)] = counts.get(id(self), 0) + int(n or 0)
                    if arrived := max(counts.values()) - before:
                        progress.advance(arrived)
            return super().update(n)

    return ReportingBar


def _damaged(blobs: Path, files: Sequence[HubFile]) -> list[HubFile]:
    """Those of the downloaded files that are not what their digests say."""

    def digest(file: HubFile) -> str:
        with open_model_file(blobs / file.digest) as stream:
            if len(file.digest) == hashlib.sha256().digest_size * 2:
                return hashlib.file_digest(stream, "sha256").hexdigest()
            prefix = b"blob %d\0" % file.size
            return hashlib.sha1(prefix + stream.read(), usedforsecurity=False).hexdigest()

    with ThreadPoolExecutor() as pool:
        digests = pool.map(digest, files)
        return [file for file, value in zip(files, digests, strict=True) if value != file.digest]


def _write_ref(name: str, revision: str, commit: str) -> Path:
    """The snapshot of a complete commit, which is recorded for other tools and offline runs."""
    folder = _repository_folder(name)
    ref = folder / "refs" / revision
    if revision != commit and not (ref.is_file() and ref.read_text() == commit):
        ref.parent.mkdir(parents=True, exist_ok=True)
        temporary = ref.with_name(f"{ref.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}.new")
        temporary.write_text(commit, encoding="utf-8")
        temporary.replace(ref)
    return folder / "snapshots" / commit


def _repository_folder(name: str) -> Path:
    """The folder of the repository in the cache."""
    cache = Path(constants.HF_HUB_CACHE).expanduser().resolve()
    return cache / "--".join(["models", *name.split("/")])


def _unavailable(name: str, revision: str, error: Exception) -> ModelUnavailable:
    """The error for an exception that the client raised while listing or downloading."""
    page = f"{constants.ENDPOINT}/{name}"
    if isinstance(error, errors.LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    failed = f"{name} could not be downloaded"
    again = f"try again: {KEPT}. The model's page is {page}"
    match error:
        case errors.GatedRepoError():  # before its parent, RepositoryNotFoundError
            return _gated(name, page)
        case errors.RevisionNotFoundError():
            return _no_revision(name, revision)
        case errors.RepositoryNotFoundError():
            return ModelUnavailable(
                f"the Hub has no model {name!r}, or it is private and the token does not open it",
                hint=f"check the spelling; for a private model {LOGIN}",
            )
        case errors.HFValidationError():
            return ModelUnavailable(
                f"{name!r} is neither a folder nor a name that the Hub allows",
                hint="check the spelling",
            )
        case errors.HfHubHTTPError():
            hint = STATUS_HINTS.get(error.response.status_code, again).format(page=page)
            if error.response.status_code == 401:
                hint = _invalid_token()
            elif isinstance(error, errors.EntryNotFoundError):
                file = error.response.request.url.path.rpartition("/")[2]
                failed += f": {constants.ENDPOINT} lists a file and does not have it, {file}"
            return ModelUnavailable(f"{failed}: {_reason(error)}", hint=hint)
        case errors.LocalEntryNotFoundError() | ConnectionError() | TRANSPORT_ERROR():
            return _unreachable(name, error)
        case OSError() if error.errno:
            return ModelUnavailable(
                f"{name} could not be stored in {constants.HF_HUB_CACHE}: {error.strerror}",
                hint="free space there, or set HF_HOME to a folder on a larger disk",
            )
    return ModelUnavailable(f"{failed}: {first_line(error)}", hint=again)


def _unreachable(name: str, error: Exception) -> ModelUnavailable:
    reason = _reason(error)
    hint = f"check the network and run the same command again: {KEPT}; or name a local folder: "
    hint += "--model DIR"
    if "CERTIFICATE_VERIFY_FAILED" in reason:
        hint = "behind a proxy that opens encrypted traffic, set SSL_CERT_FILE to its certificate; "
        hint += "check the clock too"
    elif type(error).__name__ == "ProxyError":
        hint = "check HTTPS_PROXY: the proxy's address, and a login where it asks for one"
    elif not constants.ENDPOINT.startswith(("http://", "https://")):
        hint = "HF_ENDPOINT is not the address of a Hub: unset it for https://huggingface.co"
    return ModelUnavailable(
        f"{name} is not in the cache as a whole, and {constants.ENDPOINT} does not serve it: "
        f"{reason}",
        hint=hint,
    )


def _offline(name: str) -> ModelUnavailable:
    folder = name.rpartition("/")[2]
    return ModelUnavailable(
        f"{name} is not in the cache as a whole, and HF_HUB_OFFLINE forbids downloading it",
        hint="`unset HF_HUB_OFFLINE`; or where there is a network `hf download "
        f"{name} --local-dir {folder}`, bring that folder here, and name it: --model {folder}",
    )


def _no_revision(name: str, revision: str) -> ModelUnavailable:
    return ModelUnavailable(
        f"{name} has no revision {revision!r}",
        hint=f"see {constants.ENDPOINT}/{name}/commits/main",
    )


def _gated(name: str, page: str) -> ModelUnavailable:
    source = token_source()
    if source is None:
        return ModelUnavailable(
            f"{name} needs its licence accepted, and no token is set on this machine",
            hint=f"open {page} and accept the licence, then {LOGIN}; "
            "or name a local folder: --model DIR",
        )
    unset = "" if source == LOGIN else f"`unset {source}` to use the token of {LOGIN}, or "
    return ModelUnavailable(
        f"{name} needs its licence accepted by the user whose token is set on this machine "
        f"({source})",
        hint=f"open {page} and accept it as the user that `hf auth whoami` names; {unset}"
        "name a local folder: --model DIR",
    )


def _invalid_token() -> str:
    """The hint for a token that the Hub does not accept."""
    source = token_source()
    remedy = "`hf auth login --force` with a new one"
    if source in TOKEN_VARIABLES:
        remedy = f"`unset {source}`, then {LOGIN} if that has none"
    return f"the token of {source} is not valid: {remedy}"


def _reason(error: BaseException) -> str:
    """The status of an answer, or the first line of any other error."""
    if isinstance(error, errors.HfHubHTTPError):
        return f"{error.response.status_code} {error.response.reason_phrase}".strip()
    return first_line(error)


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
