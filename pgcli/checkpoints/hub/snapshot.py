"""Finds the cached snapshot of a Hub repository, and downloads the files that it lacks."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import constants, get_token, hf_hub_download
from huggingface_hub.errors import HFValidationError, RevisionNotFoundError

from pgcli.checkpoints.hub import errors, verify
from pgcli.checkpoints.hub.download import DownloadCounter, download
from pgcli.checkpoints.hub.download_progress import DownloadPlan, DownloadProgress, NoProgress
from pgcli.checkpoints.hub.repository import HubFile, Repository
from pgcli.checkpoints.hub.required_files import Kind, complete_files, required_files
from pgcli.checkpoints.weight_files import INDEX
from pgcli.errors import ModelUnavailable

#: No branch or tag has such a name, and the cache keeps the commit of each in a file of that name.
INVALID_REVISION = re.compile(r"\A/|\.\.|[\x00-\x20\\]|\A\Z")
#: The client raises ValueError for invalid arguments, and for answers that are not JSON.
DOWNLOAD_ERRORS = (errors.TRANSPORT_ERROR, OSError, ValueError)


def snapshot(name: str, revision: str | None, *, kind: Kind, progress: DownloadProgress) -> Path:
    """The folder in the cache with the required files of a repository; its name is the commit.

    The Hub is asked which commit the revision is, unless the revision is a commit that the cache
    has. If the Hub does not answer, the cached snapshot is used. Raises ModelUnavailable and
    InvalidCheckpoint with the remedy.
    """
    revision = constants.DEFAULT_REVISION if revision is None else revision
    if INVALID_REVISION.search(revision):
        raise errors.no_revision(name, revision)
    try:
        with progress:
            folder = _find(Repository(name, revision, kind), progress)
    except HFValidationError as error:
        raise errors.unavailable(name, revision, error) from error
    for file in complete_files(kind, folder):
        if file.endswith(".safetensors"):
            verify.check_header(folder / file)
    return folder


def _find(repository: Repository, progress: DownloadProgress) -> Path:
    name, cached = repository.name, repository.cached()
    if cached and (constants.HF_HUB_OFFLINE or cached.name == repository.revision):
        return cached
    if constants.HF_HUB_OFFLINE:
        raise errors.offline(name)
    try:
        _check_token()
        commit, files = repository.list_files()
    except DOWNLOAD_ERRORS as error:
        if cached is None or isinstance(error, RevisionNotFoundError | HFValidationError):
            raise errors.unavailable(name, repository.revision, error) from error
        progress.message(
            f"{constants.ENDPOINT} does not serve {name} now ({errors.reason(error)}); "
            f"{cached.name[:12]} from the cache is used"
        )
        return cached
    try:
        return _complete(repository, commit, files, progress)
    except DOWNLOAD_ERRORS as error:
        raise errors.unavailable(name, repository.revision, error) from error


def _check_token() -> None:
    # the client's own message about an invalid token would show it
    token = get_token() or ""
    if not (token.isascii() and token.isprintable()):
        raise ModelUnavailable(
            "the token set on this machine has characters that no token has",
            hint="`hf auth login` with a new one, or set HF_TOKEN anew",
        )


def _complete(
    repository: Repository, commit: str, files: dict[str, HubFile], progress: DownloadProgress
) -> Path:
    """Download the required files that the cache lacks."""
    folder = repository.folder / "snapshots" / commit

    def index() -> Path:
        bar = DownloadCounter(NoProgress()).tqdm_class
        return Path(hf_hub_download(repository.name, INDEX, revision=commit, tqdm_class=bar))

    names = required_files(repository.name, repository.kind, files, index)
    wanted = [files[name] for name in names]
    unlinked = [file for file in wanted if not _is_cached(folder / file.name, file)]
    missing = [
        file for file in unlinked if not _is_cached(repository.folder / "blobs" / file.digest, file)
    ]
    if missing:
        progress.start(_make_plan(repository, wanted, missing))
    if unlinked:
        download(repository.name, commit, [file.name for file in unlinked], progress)
        verify.check_digests({folder / file.name: file.digest for file in missing})
    repository.write_ref(commit)
    return folder


def _is_cached(path: Path, file: HubFile) -> bool:
    if not path.is_file():
        return False
    verify.check_size(path, file.size)
    return True


def _make_plan(
    repository: Repository, wanted: Sequence[HubFile], missing: Sequence[HubFile]
) -> DownloadPlan:
    """The sizes of a download. Raises ModelUnavailable if the disk has not enough free space."""
    cache = repository.folder.parent
    total, size = (sum(file.size for file in files) for files in (wanted, missing))
    free = shutil.disk_usage(next(path for path in (cache, *cache.parents) if path.exists())).free
    if size > free:
        raise errors.no_space(repository.name, size, free)
    return DownloadPlan(repository.name, cache, total, total - size, free)
