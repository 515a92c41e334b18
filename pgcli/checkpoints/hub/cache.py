"""Where the cache that all tools share keeps a repository: blobs, snapshots, refs and locks."""

from __future__ import annotations

import os
import re
import uuid
from contextlib import suppress
from pathlib import Path

from huggingface_hub import constants

from pgcli.checkpoints.hub.required_files import Kind, complete_files

COMMIT = re.compile(r"[0-9a-f]{40}")


class Repository:
    """One revision of a repository, and its places on disk."""

    def __init__(self, name: str, revision: str, kind: Kind):
        self.name = name
        self.revision = revision
        self.kind = kind
        self.cache = Path(constants.HF_HUB_CACHE).expanduser().resolve()
        self._stem = f"models--{name.replace('/', '--')}"

    def snapshot(self, commit: str) -> Path:
        return self.cache / self._stem / "snapshots" / commit

    def blob(self, digest: str) -> Path:
        return self.cache / self._stem / "blobs" / digest

    def lock(self, digest: str) -> Path:
        return self.cache / ".locks" / self._stem / f"{digest}.lock"

    def cached(self) -> Path | None:
        """The folder of the revision as it was last seen, if it has all that is needed."""
        commit = self._commit()
        if commit is None or not complete_files(self.kind, self.snapshot(commit)):
            return None
        return self.snapshot(commit)

    def link(self, commit: str, name: str, digest: str) -> None:
        """Let a snapshot have the file, whose contents are in a blob."""
        place, blob = self.snapshot(commit) / name, self.blob(digest)
        place.parent.mkdir(parents=True, exist_ok=True)
        new = _beside(place)
        try:
            new.symlink_to(os.path.relpath(blob, place.parent))
        except OSError:  # a file system or a user that may not: the snapshot gets the file itself
            new = blob
        new.replace(place)

    def remember(self, commit: str) -> None:
        """Let the revision's name lead to the commit where there is no network."""
        if commit in (self.revision, self._commit()):
            return
        self._ref.parent.mkdir(parents=True, exist_ok=True)
        new = _beside(self._ref)
        new.write_text(commit, encoding="utf-8")
        new.replace(self._ref)

    @property
    def _ref(self) -> Path:
        return self.cache / self._stem / "refs" / self.revision

    def _commit(self) -> str | None:
        if COMMIT.fullmatch(self.revision):
            return self.revision
        with suppress(OSError, ValueError):
            commit = self._ref.read_text(encoding="utf-8").strip()
            return commit if COMMIT.fullmatch(commit) else None
        return None


def _beside(place: Path) -> Path:
    """A name that no other process takes, for what becomes `place` in one step."""
    return place.with_name(f"{place.name}.{uuid.uuid4().hex[:8]}.new")
