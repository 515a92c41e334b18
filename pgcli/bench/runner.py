"""The interface of a program under measurement: its inputs, and the results of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pgcli.bench.roofline import Stages
from pgcli.records import DecodedImage
from pgcli.tasks import Question


@dataclass(frozen=True)
class BenchInputs:
    """Rows of an image and a prompt, every prompt of each image in turn, in batches of `batch`.

    `ids` are the prompts' tokens from the first to the newline; `files` are the images' files.
    `lengths` are the rows' exact numbers of tokens; empty if answers end with their stop token.
    With `fast_decode` pgcli decodes files at a reduced size.
    """

    images: Sequence[DecodedImage]
    files: Sequence[Path]
    question: Question
    ids: Sequence[Sequence[int]]
    lengths: Sequence[int]
    batch: int
    fast_decode: bool = False

    @property
    def rows(self) -> int:
        return len(self.images) * len(self.ids)

    def prompt(self, row: int) -> Sequence[int]:
        return self.ids[row % len(self.ids)]

    def image(self, row: int) -> int:
        """The index of a row's image."""
        return row // len(self.ids)


@dataclass(frozen=True, slots=True)
class BenchRun:
    """One run: its wall-clock seconds, the model's seconds by stage, and each row's tokens.

    `start_seconds` passed before the first image was decoded, while decoding processes started.
    `peak_bytes` is the peak GPU memory on top of the weights, None without a GPU; `kept_bytes` is
    what the program's allocator had cached before.
    """

    seconds: float
    stages: Stages
    tokens: tuple[tuple[int, ...], ...]
    start_seconds: float = 0.0
    peak_bytes: int | None = None
    kept_bytes: int = 0

    @property
    def clock_seconds(self) -> float:
        """The wall-clock seconds after the start."""
        return self.seconds - self.start_seconds


class Runner(Protocol):
    """A program under measurement."""

    name: str

    def run_arrays(self, inputs: BenchInputs) -> BenchRun:
        """From the images' pixels in memory to every row's tokens."""

    def run_files(self, inputs: BenchInputs, output: Path) -> BenchRun:
        """From the images' files to rows of JSON in a file."""
