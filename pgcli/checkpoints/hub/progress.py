"""What a download says of itself while it goes on, and the bar that Python users see of it."""

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
    """A download about to begin: sizes in bytes, all that is needed and how much of it is there."""

    name: str
    folder: Path
    total: int
    kept: int
    free: int

    @property
    def missing(self) -> int:
        return self.total - self.kept


class DownloadProgress(Protocol):
    """Told of one download, within a `with` block that may also begin and end without any.

    `count` comes from several threads, one at a time; it is negative where a file starts over.
    """

    def remark(self, message: str) -> None: ...

    def start(self, plan: DownloadPlan) -> None: ...

    def count(self, arrived: int) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *problem: object) -> None: ...


class NoProgress:
    """Shows nothing."""

    def remark(self, message: str) -> None:
        pass

    def start(self, plan: DownloadPlan) -> None:
        pass

    def count(self, arrived: int) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        pass


class TqdmProgress(NoProgress):
    """A bar of bytes on stderr where that is a terminal, and nothing elsewhere."""

    def __init__(self) -> None:
        self._drawn: tqdm[Any] | None = None

    def remark(self, message: str) -> None:
        from tqdm import tqdm

        tqdm.write(printable(message), file=sys.stderr)

    def start(self, plan: DownloadPlan) -> None:
        from huggingface_hub.utils import (  # type: ignore[attr-defined]  # it loads it lazily
            are_progress_bars_disabled,
        )
        from tqdm import tqdm

        self._drawn = tqdm(
            desc=printable(plan.name),
            total=plan.total,
            initial=plan.kept,
            unit="B",
            unit_scale=True,
            disable=True if are_progress_bars_disabled() else None,
        )

    def count(self, arrived: int) -> None:
        if self._drawn is not None:
            self._drawn.update(arrived)

    def __exit__(self, *problem: object) -> None:
        if self._drawn is not None:
            self._drawn.close()
