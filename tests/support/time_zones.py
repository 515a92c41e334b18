"""Columns of times with an unknown zone, and pytz as pyarrow meets it."""

from __future__ import annotations

import datetime
from types import ModuleType

import pyarrow as pa

UNKNOWN_ZONE = pa.timestamp("s", tz="Nowhere/Atlantis")


def pretended_pytz() -> ModuleType:
    """A module like pytz, whose error for an unknown zone is a KeyError."""
    module = ModuleType("pytz")
    zones = {"UTC": datetime.UTC}
    error = type("UnknownTimeZoneError", (KeyError,), {})

    def timezone(name: str) -> datetime.tzinfo:
        if name not in zones:
            raise error(name)
        return zones[name]

    vars(module).update(timezone=timezone, utc=datetime.UTC, UnknownTimeZoneError=error)
    return module
