"""Downloads the files of a repository on the Hub into its cache, with huggingface_hub.

The cached snapshot is used if the Hub does not answer. Tokens are never shown.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
import warnings
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self

from huggingface_hub import (
    DryRunFileInfo,
    HfApi,
    constants,
    errors,
    get_cached_repo_tree,
    get_token,
    hf_hub_download,
    snapshot_download,
)
from huggingface_hub.utils.tqdm import tqdm as HubBar

from pgcli.checkpoints.files import CheckpointKind, file_names, required_files
from pgcli.errors import InvalidCheckpoint, ModelUnavailable
from pgcli.text import byte_count, first_line, printable

#: Variables for a token: the first one set takes precedence, also over `hf auth login`.
TOKEN_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
LOGIN = "`hf auth login`"
#: How long a cancelled download may take to remove its temporary files.
CANCEL_SECONDS = 2.0
#: No branch or tag has such a name.
INVALID_REVISION = re.compile(r"\A/|\.\.|[\x00-\x20\\]|\A\Z")
#: The base class of the HTTP errors, whichever HTTP library the client uses.
TRANSPORT_ERROR: Any = errors.HfHubHTTPError.__bases__[0]
#: Downloads that the caller does not see have no bar.
SILENT: Any = partial(HubBar, disable=True)
#: The client raises ValueError for invalid arguments, and for answers that are not JSON.
HUB_ERRORS = (TRANSPORT_ERROR, OSError, ValueError)
KEPT = "complete files are kept"


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
    name: str, revision: str | None, *, kind: CheckpointKind, progress: DownloadProgress | None
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
            is_pinned = cached is not None and cached.name == revision
            if cached and (constants.HF_HUB_OFFLINE or (is_pinned and _listed(name, revision))):
                return cached
            if constants.HF_HUB_OFFLINE:
                raise _offline(name)
            _check_token()
            timeout = constants.HF_HUB_ETAG_TIMEOUT
            info = HfApi().model_info(name, revision=revision, timeout=timeout)
        except HUB_ERRORS as error:
            if cached is None or isinstance(
                error, errors.RevisionNotFoundError | errors.HFValidationError
            ):
                raise _unavailable(name, revision, error) from error
            message = (
                f"{constants.ENDPOINT} cannot provide {name} now ({_reason(error)}); "
                f"{cached.name[:12]} from the cache is used"
            )
            if progress is None:
                warnings.warn(printable(message), stacklevel=2)
            else:
                progress.message(message)
            return cached
        try:
            files = [file.rfilename for file in info.siblings or ()]
            folder = _complete(name, info.sha or "", files, kind, progress)
            if cached != folder:
                HfApi().resolve_revision(name, revision=revision)  # records it for offline runs
            return folder
        except HUB_ERRORS as error:
            raise _unavailable(name, revision, error) from error


def config_folder(name: str, revision: str | None) -> Path | None:
    """The folder in the cache with the `config.json` of a repository, which is downloaded alone.

    None if the repository has none. Raises ModelUnavailable with the remedy.
    """
    revision = constants.DEFAULT_REVISION if revision is None else revision
    if INVALID_REVISION.search(revision):
        raise _no_revision(name, revision)
    if constants.HF_HUB_OFFLINE:
        raise _offline(name)
    try:
        _check_token()
        timeout = constants.HF_HUB_ETAG_TIMEOUT
        commit = HfApi().model_info(name, revision=revision, timeout=timeout).sha
        file = hf_hub_download(name, "config.json", revision=commit, tqdm_class=SILENT)
    except errors.RemoteEntryNotFoundError:
        return None
    except HUB_ERRORS as error:
        raise _unavailable(name, revision, error) from error
    return Path(file).parent


def cached_snapshot(name: str, revision: str, *, kind: CheckpointKind) -> Path | None:
    """The cached folder of a revision; None if a required file is missing.

    The cache has the list of the revision's files; another program may have downloaded only some of
    them. Raises InvalidCheckpoint for a file that has another size than on the Hub.
    """
    try:
        folder = Path(snapshot_download(name, revision=revision, local_files_only=True))
    except errors.IncompleteSnapshotError as error:  # it lacks files that may not be required
        folder = Path(error.snapshot_path)
    except errors.LocalEntryNotFoundError:
        return None
    sizes = _listed(name, revision)
    try:
        files = required_files(name, kind, sizes or file_names(folder), folder.joinpath)
    except InvalidCheckpoint:
        return None
    if not all((folder / file).is_file() for file in files):
        return None
    _check_sizes(folder, files, sizes)
    return folder


def _listed(name: str, revision: str) -> dict[str, int]:
    """The sizes of a revision's files by name, if the cache has the list of its files."""
    try:
        return {file.path: file.size for file in get_cached_repo_tree(name, revision=revision)}
    except errors.CachedRepoTreeNotFoundError:
        return {}


def _check_sizes(folder: Path, files: Collection[str], sizes: Mapping[str, int]) -> None:
    """Raise InvalidCheckpoint for a file in the cache that has another size than on the Hub."""
    for file in files:
        size = (folder / file).stat().st_size
        if size != sizes.get(file, size):
            raise InvalidCheckpoint(
                f"{file} in the cache is damaged: it has {size:,} bytes instead of {sizes[file]:,}",
                hint=f"delete {(folder / file).resolve()} and run the same command again, which "
                "downloads it",
            )


def token_source() -> str | None:
    """The source of this machine's token: a variable or the login; None without a token."""
    for variable in TOKEN_VARIABLES:
        if os.environ.get(variable, "").strip():
            return variable
    return LOGIN if get_token() else None


def _check_token() -> None:
    # the client's own message about an invalid token would show it
    token = get_token() or ""
    if not (token.isascii() and token.isprintable()):
        raise ModelUnavailable(
            "the Hugging Face token contains invalid characters",
            hint=f"{LOGIN} with a new one, or set HF_TOKEN again",
        )


def _complete(
    name: str,
    commit: str,
    files: Collection[str],
    kind: CheckpointKind,
    progress: DownloadProgress | None,
) -> Path:
    """Download the required files that the cache lacks; the folder that has all of them.

    Raises InvalidCheckpoint for a file whose size or checksum is not the Hub's, and
    ModelUnavailable if the disk has not enough free space.
    """

    def fetch(file: str) -> Path:
        return Path(hf_hub_download(name, file, revision=commit, tqdm_class=SILENT))

    required = required_files(name, kind, files, fetch)
    plan = snapshot_download(
        name, revision=commit, allow_patterns=required, dry_run=True, tqdm_class=SILENT
    )
    missing = [file for file in plan if file.will_download]
    if missing:
        _start(name, plan, missing, progress)
        folder = _download(name, commit, required, progress)
        _verify(name, commit, folder)
    else:  # the client writes its list of the files, which offline runs need
        folder = Path(
            snapshot_download(name, revision=commit, allow_patterns=required, tqdm_class=SILENT)
        )
    _check_sizes(folder, required, _listed(name, commit))
    return folder


def _start(
    name: str,
    required: Sequence[DryRunFileInfo],
    missing: Sequence[DryRunFileInfo],
    progress: DownloadProgress | None,
) -> None:
    """Announce the sizes of a download. Raises ModelUnavailable if it does not fit on the disk."""
    total, size = (sum(file.file_size or 0 for file in files) for files in (required, missing))
    cache = Path(constants.HF_HUB_CACHE)
    free = shutil.disk_usage(next(path for path in (cache, *cache.parents) if path.exists())).free
    if size > free:
        raise ModelUnavailable(
            f"{name} needs {byte_count(size)} more on disk, and {cache} has "
            f"{byte_count(free)} free",
            hint="free space there, or set HF_HOME to a folder on a larger disk",
        )
    if progress is not None:
        progress.start(DownloadPlan(name, cache, total, total - size, free))


def _download(name: str, commit: str, files: list[str], progress: DownloadProgress | None) -> Path:
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
        return Path(job.result())
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


def _verify(name: str, commit: str, folder: Path) -> None:
    """Delete files of a snapshot with a wrong checksum. Raises InvalidCheckpoint."""
    mismatches = HfApi().verify_repo_checksums(name, revision=commit).mismatches
    for mismatch in mismatches:
        file = folder / mismatch["path"]
        file.resolve().unlink()
        file.unlink(missing_ok=True)
    if mismatches:
        raise InvalidCheckpoint(
            f"{mismatches[0]['path']} was damaged in the download: its checksum is wrong",
            hint="the file was deleted: the same command again downloads it",
        )


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
                f"the Hub has no model {name!r}, or it is private and the token has no access",
                hint=f"check the spelling; for a private model {LOGIN}",
            )
        case errors.HFValidationError():
            return ModelUnavailable(
                f"{name!r} is neither a folder nor a valid Hub name",
                hint="check the spelling",
            )
        case errors.HfHubHTTPError():
            hint = again
            if error.response.status_code == 401:
                hint = f"the token of {token_source()} is not valid: set it again, or {LOGIN}"
            return ModelUnavailable(f"{failed}: {_reason(error)}", hint=hint)
        case errors.LocalEntryNotFoundError() | ConnectionError() | TRANSPORT_ERROR():
            return ModelUnavailable(
                f"{name} is not complete in the cache, and {constants.ENDPOINT} cannot be "
                f"reached: {_reason(error)}",
                hint=f"check the network and run the same command again: {KEPT}; or name a local "
                "folder: <--model DIR>",
            )
        case OSError() if error.errno:
            return ModelUnavailable(
                f"{name} could not be stored in {constants.HF_HUB_CACHE}: {error.strerror}",
                hint="free space there, or set HF_HOME to a folder on a larger disk",
            )
    return ModelUnavailable(f"{failed}: {first_line(error)}", hint=again)


def _offline(name: str) -> ModelUnavailable:
    folder = name.rpartition("/")[2]
    return ModelUnavailable(
        f"{name} is not complete in the cache, and HF_HUB_OFFLINE forbids downloading it",
        hint=f"`unset HF_HUB_OFFLINE`; or run `hf download {name} --local-dir {folder}` on a "
        f"machine with a network, copy the folder here, and use <--model {folder}>",
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
            "or name a local folder: <--model DIR>",
        )
    unset = "" if source == LOGIN else f"`unset {source}` to use the token of {LOGIN}, or "
    return ModelUnavailable(
        f"{name} needs its licence accepted by the user whose token is set on this machine "
        f"({source})",
        hint=f"open {page} and accept it as the user that `hf auth whoami` names; {unset}"
        "name a local folder: <--model DIR>",
    )


def _reason(error: BaseException) -> str:
    """The status of an answer, or the first line of any other error."""
    if isinstance(error, errors.HfHubHTTPError):
        return f"{error.response.status_code} {error.response.reason_phrase}".strip()
    return first_line(error)
