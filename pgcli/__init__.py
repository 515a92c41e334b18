"""Ask questions about images with PaliGemma. The public names are imported when first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pgcli.api import Engine, load
    from pgcli.records import Answer, Box, Item
    from pgcli.results import Results, read
    from pgcli.runs import RunReport, TrainingReport, run, train

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
__version__ = "0.1.0"

_HOME = {
    "Answer": "pgcli.records",
    "Box": "pgcli.records",
    "Engine": "pgcli.api",
    "Item": "pgcli.records",
    "Results": "pgcli.results",
    "RunReport": "pgcli.runs",
    "TrainingReport": "pgcli.runs",
    "load": "pgcli.api",
    "read": "pgcli.results",
    "run": "pgcli.runs",
    "train": "pgcli.runs",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'pgcli' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
