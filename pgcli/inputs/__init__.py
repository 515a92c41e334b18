"""Inputs: the sources that a user names become an inventory of files, and a stream of items.

`listing` expands sources to files, `scan` reads them for an `inventory`, which gives the items of
any range. A manifest or an archive is a `tables.Table`, with a file for each format.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pgcli.inputs.inventory import Inventory
    from pgcli.inputs.options import ReadOptions

__all__ = ["Inventory", "ReadOptions"]


def __getattr__(name: str) -> Any:
    """The public names, imported when they are first used: an inventory needs pyarrow."""
    if name not in __all__:
        raise AttributeError(f"module 'pgcli.inputs' has no attribute {name!r}")
    home = "options" if name == "ReadOptions" else "inventory"
    return getattr(import_module(f"pgcli.inputs.{home}"), name)
