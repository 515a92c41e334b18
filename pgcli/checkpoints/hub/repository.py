"""A revision of a Hub repository: its files on the Hub, and its folder in the cache."""

from __future__ import annotations

import os
import re
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from huggingface_hub import HfApi, constants, try_to_load_from_cache
from huggingface_hub.file_download import repo_folder_name
from huggingface_hub.hf_api import RepoSibling

from pgcli.checkpoints.hub.required_files import CONFIG, Kind, complete_files
from pgcli.checkpoints.weight_files import OPEN_CLIP_CONFIG

COMMIT = re.compile(r"[0-9a-f]{40}")
SHA256 = re.compile(r"[0-9a-f]{64}")


class HubFile(NamedTuple):
    """A file of a repository: size in bytes, and the digest that is its name in the cache."""

    name: str
    size: int
    digest: str


@dataclass(frozen=True, slots=True)
class Repository:
    """A revision of a repository, of which the files of one kind are wanted."""

    name: str
    revision: str
    kind: Kind

    @property
    def folder(self) -> Path:
        """The folder of the repository in the cache."""
        cache = Path(constants.HF_HUB_CACHE).expanduser().resolve()
        return cache / repo_folder_name(repo_id=self.name, repo_type="model")

    def cached(self) -> Path | None:
        """The snapshot that the cache has for the revision, if it has all required files."""
        configs = [CONFIG[self.kind], *([OPEN_CLIP_CONFIG] if self.kind == "model" else [])]
        for name in configs:
            config = try_to_load_from_cache(self.name, name, revision=self.revision)
            if isinstance(config, str) and complete_files(self.kind, Path(config).parent):
                return Path(config).parent
        return None

    def list_files(self) -> tuple[str, dict[str, HubFile]]:
        """The commit of the revision, and its files by name."""
        info = HfApi().model_info(
            self.name,
            revision=self.revision,
            files_metadata=True,
            timeout=constants.HF_HUB_ETAG_TIMEOUT,
        )
        commit = info.sha or ""
        if not COMMIT.fullmatch(commit):
            raise ValueError(f"{constants.ENDPOINT} does not say which commit it has")
        return commit, {file.rfilename: _hub_file(file) for file in info.siblings or ()}

    def write_ref(self, commit: str) -> None:
        """Record the commit of the revision, which other tools and offline runs read."""
        ref = self.folder / "refs" / self.revision
        if self.revision == commit or (ref.is_file() and ref.read_text() == commit):
            return
        ref.parent.mkdir(parents=True, exist_ok=True)
        temporary = ref.with_name(f"{ref.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}.new")
        temporary.write_text(commit, encoding="utf-8")
        temporary.replace(ref)


def _hub_file(file: RepoSibling) -> HubFile:
    size, digest = file.size, file.blob_id or ""
    if file.lfs is not None:
        size, digest = file.lfs.size, file.lfs.sha256
    # the digest is part of a path on this disk
    if not isinstance(size, int) or not (SHA256.fullmatch(digest) or COMMIT.fullmatch(digest)):
        raise ValueError(f"{constants.ENDPOINT} does not say what {file.rfilename} contains")
    return HubFile(file.rfilename, size, digest)
