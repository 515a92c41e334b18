"""Ask questions about images with PaliGemma. The public names are imported when first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pgcli.version import __version__

if TYPE_CHECKING:
    from pgcli.api.engine import Engine, TrainingReport, load, train
    from pgcli.api.runs import RunReport, run
    from pgcli.records import Answer, Box, Item
    from pgcli.results import Results, read

__all__ = [
    "Answer",
    "Box",
    "Engine",
    "Item",
    "Results",
    "RunReport",
    "TrainingReport",
    "__version__",
    "load",
    "read",
    "run",
    "train",
]

_HOME = {
    **dict.fromkeys(("Answer", "Box", "Item"), "pgcli.records"),
    **dict.fromkeys(("Engine", "TrainingReport", "load", "train"), "pgcli.api.engine"),
    **dict.fromkeys(("RunReport", "run"), "pgcli.api.runs"),
    **dict.fromkeys(("Results", "read"), "pgcli.results"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'pgcli' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
