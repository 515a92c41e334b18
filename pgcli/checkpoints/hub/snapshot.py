"""A name on the Hub -> a folder of its cache that has all the files that are read, verified."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import HfApi, constants, get_token, hf_hub_url
from huggingface_hub.errors import HFValidationError, RevisionNotFoundError
from huggingface_hub.hf_api import RepoSibling

from pgcli.checkpoints.files import INDEX
from pgcli.checkpoints.hub import errors, verify
from pgcli.checkpoints.hub.blobs import SHA256, TRANSPORT, Remote, arrived
from pgcli.checkpoints.hub.cache import COMMIT, Repository
from pgcli.checkpoints.hub.progress import DownloadPlan, DownloadProgress, NoProgress
from pgcli.checkpoints.hub.required_files import Kind, complete_files, required_files
from pgcli.checkpoints.hub.transfer import fetch_all
from pgcli.errors import ModelUnavailable

# no branch or tag is spelled so, and the cache keeps each in a file of that name
NO_REVISION = re.compile(r"\A/|\.\.|[\x00-\x20\\]|\A\Z")
# the client's own checks are ValueErrors, and so is JSON that is none
WRONG = (TRANSPORT, OSError, ValueError)


def snapshot(name: str, revision: str | None, *, kind: Kind, tell: DownloadProgress) -> Path:
    """The folder of the cache with what is needed of a repository; its name is the commit.

    Asks the Hub first, unless a whole commit is named and there; where the Hub does not answer,
    what is in the cache does. Raises ModelUnavailable and InvalidCheckpoint with the remedy.
    """
    revision = constants.DEFAULT_REVISION if revision is None else revision
    if NO_REVISION.search(revision):
        raise errors.no_revision(name, revision)
    repository = Repository(name, revision, kind)
    with tell:
        folder = _found(repository, tell)
    for file in complete_files(kind, folder):
        if file.endswith(".safetensors"):
            verify.insist(folder / file)
    return folder


def _found(repository: Repository, tell: DownloadProgress) -> Path:
    name, cached = repository.name, repository.cached()
    if cached and (constants.HF_HUB_OFFLINE or cached.name == repository.revision):
        return cached
    if constants.HF_HUB_OFFLINE:
        raise errors.offline(name)
    try:
        _check_token()
        commit, remotes = _listed(repository)
    except WRONG as error:
        if cached is None or isinstance(error, RevisionNotFoundError | HFValidationError):
            raise errors.unavailable(name, repository.revision, error) from error
        tell.remark(
            f"{constants.ENDPOINT} does not serve {name} now ({errors.reason(error)}); "
            f"{cached.name[:12]} from the cache is used"
        )
        return cached
    try:
        return _downloaded(repository, commit, remotes, tell)
    except WRONG as error:
        raise errors.unavailable(name, repository.revision, error) from error


def _check_token() -> None:
    # the client's message about such a one would show it
    token = get_token() or ""
    if not (token.isascii() and token.isprintable()):
        raise ModelUnavailable(
            "the token set on this machine has characters that no token has",
            hint="`hf auth login` with a new one, or set HF_TOKEN anew",
        )


def _listed(repository: Repository) -> tuple[str, dict[str, Remote]]:
    """The commit that the revision is now, and the files of its top folder, by name."""
    info = HfApi().model_info(
        repository.name,
        revision=repository.revision,
        files_metadata=True,
        timeout=constants.HF_HUB_ETAG_TIMEOUT,
    )
    commit = info.sha or ""
    if not COMMIT.fullmatch(commit):
        raise ValueError(f"{constants.ENDPOINT} does not say which commit it has")
    return commit, {
        file.rfilename: _remote(repository.name, commit, file) for file in info.siblings or ()
    }


def _remote(name: str, commit: str, file: RepoSibling) -> Remote:
    size, digest = file.size, file.blob_id or ""
    if file.lfs is not None:
        size, digest = file.lfs.size, file.lfs.sha256
    # it becomes a name on this disk
    if not isinstance(size, int) or not (SHA256.fullmatch(digest) or COMMIT.fullmatch(digest)):
        raise ValueError(f"{constants.ENDPOINT} does not say what {file.rfilename} contains")
    return Remote(file.rfilename, hf_hub_url(name, file.rfilename, revision=commit), size, digest)


def _downloaded(
    repository: Repository, commit: str, remotes: dict[str, Remote], tell: DownloadProgress
) -> Path:
    folder = repository.snapshot(commit)

    def index() -> Path:
        blob = repository.blob(remotes[INDEX].digest)
        if not _is_there(blob, remotes[INDEX]):
            fetch_all(repository, [remotes[INDEX]], NoProgress())
        return blob

    wanted = [
        remotes[name] for name in required_files(repository.name, repository.kind, remotes, index)
    ]
    missing = []
    for remote in wanted:
        if not _is_there(folder / remote.name, remote):
            _is_there(repository.blob(remote.digest), remote)
            missing.append(remote)
    if missing:
        plan = _plan(repository, wanted, missing)
        if plan.missing:
            tell.start(plan)
            fetch_all(repository, missing, tell)
        for remote in missing:
            repository.link(commit, remote.name, remote.digest)
    repository.remember(commit)
    return folder


def _is_there(file: Path, remote: Remote) -> bool:
    if not file.is_file():
        return False
    verify.insist_on_size(file, remote.size)
    return True


def _plan(
    repository: Repository, wanted: Sequence[Remote], missing: Sequence[Remote]
) -> DownloadPlan:
    """What is to be downloaded; ModelUnavailable where the disk has no room for it."""
    to_come = sum(
        remote.size - arrived(repository.blob(remote.digest), remote) for remote in missing
    )
    total = sum(remote.size for remote in wanted)
    places = (repository.cache, *repository.cache.parents)
    free = shutil.disk_usage(next(place for place in places if place.exists())).free
    if to_come > free:
        raise errors.no_room(repository.name, to_come, free)
    return DownloadPlan(repository.name, repository.cache, total, total - to_come, free)
