"""What both programs are given: the same pictures, prompts and lengths; and what a run yields."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Protocol

from pgcli.bench.roofline import Stages
from pgcli.errors import NoInputError
from pgcli.images import ImageLimits, ImageSpec, decode
from pgcli.records import DecodedImage, Item
from pgcli.tasks import Question


@dataclass(frozen=True)
class Work:
    """Rows to answer, every prompt of each picture in turn, `batch` of them at a time.

    `ids` are the prompts' tokens from the first to the newline; `files` the pictures' files.
    `lengths` are the rows' exact numbers of tokens, none where the answers end by themselves.
    """

    pictures: Sequence[DecodedImage]
    files: Sequence[Path]
    question: Question
    ids: Sequence[Sequence[int]]
    lengths: Sequence[int]
    batch: int

    @property
    def rows(self) -> int:
        return len(self.pictures) * len(self.ids)

    @cached_property
    def batches(self) -> list[list[int]]:
        """Rows that transformers takes at once: sorted by the lengths of their prompts."""
        order = sorted(range(self.rows), key=lambda row: len(self.prompt(row)))
        return [order[first : first + self.batch] for first in range(0, self.rows, self.batch)]

    def prompt(self, row: int) -> Sequence[int]:
        return self.ids[row % len(self.ids)]

    def picture(self, row: int) -> int:
        """Which picture a row is about."""
        return row // len(self.ids)


@dataclass(frozen=True, slots=True)
class Run:
    """One run: its seconds by the clock, the model's busy ones by stage, and each row's tokens.

    `peak_bytes` is what a GPU held at most on top of what it held before; None elsewhere.
    """

    seconds: float
    stages: Stages
    tokens: tuple[tuple[int, ...], ...]
    peak_bytes: int | None = None


class Side(Protocol):
    """A program under measurement."""

    @property
    def name(self) -> str: ...

    def arrays(self, work: Work) -> Run:
        """From the pictures' pixels in memory to every row's tokens."""

    def files(self, work: Work, output: Path) -> Run:
        """From the pictures' files to rows of JSON in a file."""


class Shelf:
    """Pictures as they are asked for, looked at once each; those without a file get one."""

    def __init__(self, items: Iterator[Item], spec: ImageSpec, folder: Path):
        self._spec, self._folder = spec, folder
        self._coming = self._readable(items)
        self._pictures: list[DecodedImage] = []
        self._files: list[Path] = []

    def first(self, count: int) -> tuple[list[DecodedImage], list[Path]]:
        """So many pictures and their files, or as many as there are.

        Raises NoInputError where not one can be read.
        """
        for picture in islice(self._coming, max(0, count - len(self._pictures))):
            self._files.append(self._file(picture))
            self._pictures.append(replace(picture, item=replace(picture.item, data=None)))
        if not self._pictures:
            raise NoInputError(
                "no picture to measure with",
                hint="leave out --images: pictures that are drawn here take their place",
            )
        return self._pictures[:count], self._files[:count]

    def _readable(self, items: Iterator[Item]) -> Iterator[DecodedImage]:
        pictures = (decode(item, self._spec, ImageLimits()) for item in items)
        return (picture for picture in pictures if picture.fault is None)

    def _file(self, picture: DecodedImage) -> Path:
        if picture.item.path is not None:
            return Path(picture.item.path)
        file = self._folder / f"{len(self._files):05}.png"
        file.write_bytes(picture.item.data or b"")
        return file
