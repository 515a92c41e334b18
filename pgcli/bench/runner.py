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
    """A row for each image, all with the prompt of the question, in batches of `batch`.

    `prompt_ids` are the prompt's tokens from the first to the newline, `files` the images' files,
    and `lengths` the rows' exact numbers of tokens. With `fast_decode` pgcli decodes files at a
    reduced size.
    """

    images: Sequence[DecodedImage]
    files: Sequence[Path]
    question: Question
    prompt_ids: Sequence[int]
    lengths: Sequence[int]
    batch: int
    fast_decode: bool = False


@dataclass(frozen=True, slots=True)
class BenchRun:
    """One run: its wall-clock seconds, the model's seconds by stage, and each row's tokens.

    `start_seconds` passed before the first image was decoded, while decoding processes started.
    `peak_bytes` is the peak GPU memory on top of the weights, None without a GPU; `kept_bytes` is
    the program's cached memory before the run.
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
