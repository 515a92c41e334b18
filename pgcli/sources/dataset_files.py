"""The files of a data set in a folder without images, local or remote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from pgcli.sources.endings import ending
from pgcli.sources.name_filter import NameFilter
from pgcli.sources.readers import manifest_ending
from pgcli.sources.source_part import SourcePart

#: Endings of data set files; of a folder with several kinds only the first kind is read.
DATASET_ENDINGS = ((".parquet",), (".tar", ".tar.gz", ".tgz"))


def dataset_files(names: Iterable[str]) -> list[str]:
    """The files of a folder's data set: all Parquet files, or else all archives."""
    by_ending = [(name, manifest_ending(name)) for name in names]
    found = ([name for name, end in by_ending if end in ends] for ends in DATASET_ENDINGS)
    return next(filter(None, found), [])


def select_files(files: Iterable[str], names: NameFilter) -> dict[str, NameFilter]:
    """The files, by their relative paths, that may have rows to read, each with the filter of its
    rows.
    """
    found = ((file, names.in_table(file)) for file in files)
    return {file: row_names for file, row_names in found if row_names is not None}


def may_have_dataset(ignored: Mapping[str, int]) -> bool:
    """Whether a folder may have such files, from the endings of its files that are not images."""
    return any(ending(f"x{end}") in ignored for ends in DATASET_ENDINGS for end in ends)


def dataset_parts(parts: Mapping[str, SourcePart], ignored: Counter[str]) -> Iterator[SourcePart]:
    """The parts of a data set by file name. The first reports the folder's other files."""
    rest = ignored - Counter(map(ending, parts))
    for part in parts.values():
        part.ignored, rest = part.ignored + rest, Counter()
        yield part
