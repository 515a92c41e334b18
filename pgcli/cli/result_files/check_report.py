"""What `check` compared, and what it could not."""

from __future__ import annotations

from collections.abc import Iterator

from pgcli.cli.result_files.compare_rows import RowComparison
from pgcli.cli.ui.wording import count
from pgcli.images import StampComparison
from pgcli.state.run_record import RunRecord


def compared(record: RunRecord, comparison: RowComparison, images: StampComparison) -> str:
    """What was compared, as the end of a sentence."""
    if is_standard_input(record):
        return "number and order of rows"
    names = "ids, prompts" if record.moved_from else "ids, images' names, prompts"
    parts = [f"number and order of rows, {names}"]
    if comparison.without_record < comparison.rows:
        parts.append("regions, choices and --keep columns")
    if images.compared:
        how = f"bytes of {images.read:,}" if images.read else ""
        files = images.compared - images.in_tables
        parts += [f"size and time of {count(files, 'file')}"] if files else []
        parts += [how] if how else []
        parts += (
            [f"bytes of {count(images.in_tables, 'image')} in tables"] if images.in_tables else []
        )
    return ", ".join(parts)


def not_compared(
    record: RunRecord, comparison: RowComparison, images: StampComparison
) -> Iterator[str]:
    """What could not be compared, and why."""
    if is_standard_input(record):
        yield "standard input, which is gone: ids, names and bytes of images"
        return
    if record.moved_from:
        yield "names of images, which were moved from " + ", ".join(map(str, record.moved_from[0]))
    if comparison.without_record:
        rows = count(comparison.without_record, "row")
        yield f"regions, choices, --keep columns and images of {rows} without a record of them"
    if images.missing:
        yield count(images.missing, "missing image")
    if images.remote:
        yield f"{count(images.remote, 'image')} at addresses"
    if comparison.errors:
        yield f"images of {count(comparison.errors, 'row')} with errors"
    if images.compared > images.read + images.in_tables and not images.reads_all:
        yield "bytes of files of the same size and time (--verify-input reads them)"


def is_standard_input(record: RunRecord) -> bool:
    sources = record.metadata.get("sources")
    return isinstance(sources, list) and "-" in sources
