"""The files of a data set in a folder without pictures, here or at an address."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from pgcli.sources.readers import kind_of
from pgcli.sources.source_options import SourcePart, ending

#: What data sets are stored as; a folder that has the first of these is not looked at for others.
STORED = ((".parquet",), (".tar", ".tar.gz", ".tgz"))


def dataset_files(names: Iterable[str]) -> list[str]:
    """Those of a folder's files that are its data set: all Parquet files, or all archives."""
    by_kind = [(name, kind_of(name)) for name in names]
    found = ([name for name, kind in by_kind if kind in kinds] for kinds in STORED)
    return next(filter(None, found), [])


def may_have_dataset(ignored: Mapping[str, int]) -> bool:
    """Whether there may be such files, by the endings of a folder's files that are no pictures."""
    return any(ending(f"x{kind}") in ignored for kinds in STORED for kind in kinds)


def dataset_parts(found: Mapping[str, SourcePart], ignored: Counter[str]) -> Iterator[SourcePart]:
    """The parts of a data set by their names, the first of them with what else the folder has."""
    left = ignored - Counter(map(ending, found))
    for part in found.values():
        part.ignored, left = part.ignored + left, Counter()
        yield part
