"""The digests of the texts that pgcli wrote beside images, so that edited ones are recognised."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from pgcli.stores.files import open_regular

MAX_FOLDERS = 64  # records that are held in memory
#: Lines of a record for each text in it, over which it is written anew.
MAX_LINES = 4


def state_home() -> Path | None:
    """The folder of the records: `~/.local/state/pgcli/texts`, or below XDG_STATE_HOME.

    None without a home. The folders of images are data, so nothing is stored in them.
    """
    folder = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not folder.is_absolute():  # other users could create an empty or relative one
        folder = Path(os.path.expanduser("~/.local/state"))  # noqa: PTH111 - Path needs a home
    return folder / "pgcli" / "texts" if folder.is_absolute() else None


@dataclass
class Written:
    """The image that a text is of, and the digests of what was written to it last.

    A process that is killed between the record and the text leaves the text before.
    """

    image: str
    digests: tuple[str, ...]


@dataclass
class FolderRecord:
    """The texts that were written in a folder: lines of JSON, which several processes append."""

    file: Path
    texts: dict[str, Written] = field(default_factory=dict)
    _bytes: int = 0
    _lines: int = 0

    def find(self, name: str) -> Written | None:
        """What was written to the text of this name, also by another process meanwhile."""
        self._read()
        return self.texts.get(name)

    def add(self, name: str, image: str, data: bytes) -> None:
        """Append the digest of a text that is about to be written. Raises OSError."""
        line = json.dumps({"text": name, "image": image, "sha256": digest(data)})
        self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        with os.fdopen(os.open(self.file, flags, 0o600), "ab", buffering=0) as file:
            file.write(f"\n{line}".encode())  # a line that was cut before stays apart

    def _read(self) -> None:
        """Read the lines that are new."""
        try:
            size = self.file.stat().st_size
        except OSError:
            return
        if size < self._bytes:  # another process wrote the record anew
            self.texts, self._bytes, self._lines = {}, 0, 0
        if size == self._bytes:
            return
        with suppress(OSError), open_regular(self.file) as file:
            file.seek(self._bytes)
            data = file.read()
            self._bytes += len(data)
            for entry in entries(data):
                self._lines += 1
                known = self.texts.get(entry["text"])
                digests = (known.digests[-1:] if known else ()) + (entry["sha256"],)
                self.texts[entry["text"]] = Written(entry["image"], digests)
        if self._lines > MAX_LINES * len(self.texts) + 100:
            self._rewrite()

    def _rewrite(self) -> None:
        """Leave the last digests of each text.

        Lines that another process appends meanwhile are lost: its texts then count as edited.
        """
        lines = [
            {"text": name, "image": one.image, "sha256": one_digest}
            for name, one in self.texts.items()
            for one_digest in one.digests
        ]
        part = self.file.with_suffix(f".{os.getpid()}.part")
        with suppress(OSError):
            part.write_text("".join(f"\n{json.dumps(line)}" for line in lines), encoding="utf-8")
            part.chmod(0o600)
            part.replace(self.file)
            self._bytes, self._lines = self.file.stat().st_size, len(lines)


class WrittenTexts:
    """The records of all folders. Where they cannot be kept, `problem` says why."""

    def __init__(self) -> None:
        self._home = state_home()
        self._record = lru_cache(MAX_FOLDERS)(self._open)
        self.problem: str | None = None if self._home else "there is no home folder"

    def image_of(self, file: Path) -> str | None:
        """The name of the image that the text is of, if pgcli wrote it."""
        known = self._find(file)
        return known.image if known else None

    def is_unchanged(self, file: Path) -> bool:
        """Whether the file is as pgcli wrote it. A link is not, nor what cannot be read."""
        known = self._find(file)
        if known is None or file.is_symlink():
            return False
        try:
            with open_regular(file) as opened:
                return digest(opened.read()) in known.digests
        except OSError:
            return False

    def add(self, file: Path, image: str, data: bytes) -> None:
        """Note what is about to be written. To be called before the file is written."""
        if self._home is None:
            return
        try:
            self._record(os.path.realpath(file.parent)).add(file.name, image, data)
        except OSError as problem:
            self.problem = f"{problem.filename or self._home}: {problem.strerror}"

    def _find(self, file: Path) -> Written | None:
        if self._home is None:
            return None
        return self._record(os.path.realpath(file.parent)).find(file.name)

    def _open(self, folder: str) -> FolderRecord:
        assert self._home is not None
        name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:32]
        return FolderRecord(self._home / f"{name}.jsonl")


def entries(data: bytes) -> Iterator[dict[str, str]]:
    """The entries in the lines of a record. A line that is cut or not of ours is left out."""
    for line in data.splitlines():
        try:
            entry = json.loads(line)
            texts = [entry[name] for name in ("text", "image", "sha256")]
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
        if all(isinstance(text, str) for text in texts):
            yield entry


def digest(data: bytes) -> str:
    """A digest of a text."""
    return hashlib.sha256(data).hexdigest()[:32]
