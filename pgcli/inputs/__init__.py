"""Inputs: what the user names becomes an inventory of files, and that a stream of items."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pgcli.inputs.inventory import Change, Inventory
    from pgcli.inputs.options import ReadOptions
    from pgcli.inputs.readers import describe_endings

__all__ = ["Change", "Inventory", "ReadOptions", "describe_endings"]

_HOME = {
    "Change": "inventory",
    "Inventory": "inventory",
    "ReadOptions": "options",
    "describe_endings": "readers",
}


def __getattr__(name: str) -> Any:
    """The public names, imported when first used: an inventory needs pyarrow."""
    if name not in _HOME:
        raise AttributeError(f"module 'pgcli.inputs' has no attribute {name!r}")
    return getattr(import_module(f"pgcli.inputs.{_HOME[name]}"), name)
