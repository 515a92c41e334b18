"""Simulates a power loss: any part of the writes since the last fsync may remain."""

import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest


class Killed(BaseException):
    """Stands for the power loss: later writes have no effect."""


#: The system calls that change something on disk.
CALLS = (
    "pwrite",
    "fsync",
    "ftruncate",
    "truncate",
    "link",
    "replace",
    "rename",
    "unlink",
    "mkdir",
    "rmdir",
)


@dataclass
class Tree:
    """The contents of a folder: the names in each folder and the bytes of each file, by inode."""

    root: int
    names: dict[int, dict[str, int]] = field(default_factory=dict)
    bytes: dict[int, bytes] = field(default_factory=dict)


class Disk:
    """A folder on a disk that keeps synced data, and any part of the rest.

    The power fails before the `number`-th call that changes something.
    """

    def __init__(self, root: Path, number: int):
        self.root, self.number = root, number
        self.calls = 0
        self.wreck: Tree | None = None
        self._synced = tree(root)  # the initial contents are on disk
        self._held: list[int] = []  # kept open, so that no inode number is reused

    @contextmanager
    def on(self, patch: pytest.MonkeyPatch) -> Iterator[None]:
        """A block that writes into the folder."""
        with patch.context() as within:
            for name in CALLS:
                within.setattr(os, name, self._over(name, getattr(os, name)))
            try:
                yield
            finally:
                for descriptor in self._held:
                    os.close(descriptor)

    def left(self, rng: random.Random, page: int) -> None:
        """Replace the folder's contents with a possible state after the power loss."""
        assert self.wreck is not None
        for found in self.root.iterdir():
            shutil.rmtree(found) if found.is_dir() else found.unlink()
        self._fill(self.root, self.wreck.root, rng, page)

    def _over(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **more: Any) -> Any:
            if self.wreck is not None:
                return real(*given, **more)  # after the power loss
            self.calls += 1
            if self.calls == self.number:
                self.wreck = tree(self.root)
                raise Killed
            if name == "fsync":
                self._note(given[0])
            elif name in ("unlink", "replace"):
                self._hold(*given, folders=[*more.values(), None, None])
            return real(*given, **more)

        return call

    def _note(self, descriptor: int) -> None:
        """Record a sync."""
        inode = os.fstat(descriptor).st_ino
        self._held.append(os.dup(descriptor))
        for folder, _, _ in os.walk(self.root):
            if Path(folder).stat().st_ino == inode:
                self._synced.names[inode] = names(Path(folder))
                return
        self._synced.bytes[inode] = Path(f"/proc/self/fd/{descriptor}").read_bytes()

    def _hold(self, *paths: Any, folders: Sequence[int | None]) -> None:
        for path, folder in zip(paths, folders, strict=False):
            with suppress(OSError):
                self._held.append(os.open(path, os.O_RDONLY | os.O_NONBLOCK, dir_fd=folder))

    def _fill(self, folder: Path, inode: int, rng: random.Random, page: int) -> None:
        assert self.wreck is not None
        before, now = self._synced.names.get(inode, {}), self.wreck.names[inode]
        for name in sorted(before.keys() | now.keys()):
            there = before.get(name) if rng.random() < 0.5 else now.get(name)
            if there is None:
                continue
            if there in self.wreck.names:
                (folder / name).mkdir()
                self._fill(folder / name, there, rng, page)
            elif there in self.wreck.bytes or there in self._synced.bytes:
                (folder / name).write_bytes(self._bytes(there, rng, page))

    def _bytes(self, inode: int, rng: random.Random, page: int) -> bytes:
        """Pages as last synced or as last written, or zeros."""
        before = self._synced.bytes.get(inode, b"")
        now = self.wreck.bytes.get(inode, before) if self.wreck else before
        length = rng.choice((len(before), len(now), rng.randint(*sorted((len(before), len(now))))))
        held = bytearray()
        for start in range(0, length, page):
            part = (before if rng.random() < 0.5 else now)[start : start + page]
            held += part.ljust(page, b"\0")
        return bytes(held[:length])


def tree(root: Path) -> Tree:
    """The current contents of the folder."""
    found = Tree(root.stat().st_ino)
    for folder, _, files in os.walk(root):
        inode = Path(folder).stat().st_ino
        found.names[inode] = names(Path(folder))
        for name in files:
            file = Path(folder) / name
            found.bytes[file.stat().st_ino] = file.read_bytes()
    return found


def names(folder: Path) -> dict[str, int]:
    return {found.name: found.lstat().st_ino for found in folder.iterdir()}
