"""How a download reports its progress, and the progress bar of the Python interface."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from pgcli.printable import printable

if TYPE_CHECKING:
    from tqdm import tqdm


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


class NoProgress:
    """Shows nothing."""

    def message(self, text: str) -> None:
        pass

    def start(self, plan: DownloadPlan) -> None:
        pass

    def advance(self, byte_count: int) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass


class TqdmProgress(NoProgress):
    """A progress bar of bytes on stderr if that is a terminal."""

    def __init__(self) -> None:
        self._bar: tqdm[Any] | None = None

    def message(self, text: str) -> None:
        from tqdm import tqdm

        tqdm.write(printable(text), file=sys.stderr)

    def start(self, plan: DownloadPlan) -> None:
        from huggingface_hub.utils import (  # type: ignore[attr-defined]  # imported lazily there
            are_progress_bars_disabled,
        )
        from tqdm import tqdm

        self._bar = tqdm(
            desc=printable(plan.name),
            total=plan.total,
            initial=plan.cached,
            unit="B",
            unit_scale=True,
            disable=True if are_progress_bars_disabled() else None,
        )

    def advance(self, byte_count: int) -> None:
        if self._bar is not None:
            self._bar.update(byte_count)

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()
