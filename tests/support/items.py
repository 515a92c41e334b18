"""The items of sources, their ids and their faults."""

from __future__ import annotations

from pgcli.records import Item
from pgcli.sources.open_sources import open_sources
from pgcli.sources.read_options import ReadOptions


def items(*sources: str, reading: ReadOptions | None = None) -> list[Item]:
    source = open_sources(sources, reading or ReadOptions())
    found = list(source)
    assert [item.index for item in found] == list(range(len(found)))
    if "-" not in sources:
        assert list(source) == found
        assert source.total == len(found)
    return found


def ids(*sources: str, reading: ReadOptions | None = None) -> list[str]:
    return [item.id for item in items(*sources, reading=reading)]


def faults(*sources: str, reading: ReadOptions | None = None) -> list[str | None]:
    found = items(*sources, reading=reading)
    return [item.fault.code if item.fault else None for item in found]
