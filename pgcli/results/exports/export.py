"""Writes the rows of result files in the format of another tool, and reports what was written."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from pgcli.errors import UsageError
from pgcli.inputs.paths import resolves_inside
from pgcli.results.exports.entry import ExportCounts, ExportEntry, ExportFormat, ExportSettings
from pgcli.results.exports.export_entries import ExportEntries
from pgcli.results.exports.export_options import (
    ExportOptions,
    check_options,
    check_output,
    check_rows,
    find_format,
)
from pgcli.results.exports.rows import RowStats, SeveralFiles, collect_stats
from pgcli.results.gallery.run_info import incomplete_note
from pgcli.results.images import ImageLocator
from pgcli.results.publish import publish
from pgcli.run.progress.events import OnEvent, ignore, tracked
from pgcli.stores.writing import wrap_write_errors
from pgcli.wording import count, with_notes


def export(
    results: Sequence[str],
    to: str,
    output: str | None,
    options: ExportOptions,
    on_event: OnEvent = ignore,
) -> ExportCounts:
    """Write the rows of result files in another format, and return what was written and left out.

    The rows are read twice: first for statistics. Raises UsageError, NoInputError, OutputExists
    and OutputFailed.
    """
    format = find_format(to)
    check_options(to, format, options)
    target = check_output(to, format, results, output, overwrite=options.overwrite)
    paths = [Path(name) for name in results]
    notes = [note for note in map(incomplete_note, paths) if note]
    rows = SeveralFiles(paths, options.box_filter, exact=format.keeps_types)
    stats = collect_stats(tracked(rows, on_event, "reading rows", unit="rows"), options.prompt)
    check_rows(to, format, ", ".join(results), stats, options)
    wanted, locator = options.wanted(format, stats), options.locator(on_event)
    images = ExportEntries(paths, format, wanted, locator)
    if not format.is_merged:
        images.check_sources(target)
    root = options.root if "root" in format.options else None  # the others write no paths
    entries = images.entries(rows, options.prompt, root)
    counted = tracked(entries, on_event, "images", stats.images, unit="images")
    with closing(counted):
        write_export(format, target, counted, wanted, overwrite=options.overwrite)
    report_export(to, output or "files next to the images", stats, wanted.counts, locator)
    for note in notes:
        locator.say(f"{note}; the export ends there")
    return wanted.counts


def write_export(
    format: ExportFormat,
    target: Path,
    entries: Iterator[ExportEntry],
    wanted: ExportSettings,
    *,
    overwrite: bool,
) -> None:
    """Write the export: into a folder that has other files, or as a whole."""
    if format.is_merged:
        with wrap_write_errors(target):
            target.mkdir(parents=True, exist_ok=True)
        format.write(target, entries, wanted)
        return
    with publish(target, is_folder=format.is_folder, overwrite=overwrite) as part:
        checked = outside_target(entries, target) if format.is_folder else entries
        format.write(part, checked, wanted)


def outside_target(entries: Iterator[ExportEntry], target: Path) -> Iterator[ExportEntry]:
    """The entries. Raises UsageError for an image in the target, which may be replaced."""
    root = os.path.realpath(target)
    for entry in entries:
        try:
            is_inside = entry.path is not None and resolves_inside(entry.path, root)
        except ValueError:  # not a valid file name
            is_inside = False
        if is_inside:
            raise UsageError(
                f"{entry.image} is in {target}, which is written", hint="name another -o"
            )
        yield entry


def report_export(
    to: str, output: str, stats: RowStats, counts: ExportCounts, locator: ImageLocator
) -> None:
    """Report what was written and what was left out."""
    captions = f" with {counts.captions:,} captions" if counts.captions else ""
    boxes = f" with {count(counts.boxes, 'box')}" if stats.has_boxes else captions
    notes = [
        (counts.copied, "images copied, as they are not files that can be linked to"),
        (counts.unsupported, "images that Ultralytics does not read: GIF and PPM"),
        (counts.rotated, "images turned upright, as their EXIF says"),
        (counts.boxes_outside, "boxes left out, as they have no area in their image"),
        (stats.errors, "rows with errors left out"),
        (stats.other_prompts, "rows of other prompts left out"),
        (counts.boxes_without_mask, "boxes without a mask written as rectangles"),
        (counts.kept, f"existing text{'s' * (counts.kept != 1)} not replaced"),
        (counts.missing.count, "images left out, as they cannot be read"),
        (counts.unnamed, "texts not written, as no name was free"),
    ]
    exported = f"exported {count(counts.images, 'image')}{boxes} as {to} to {output}"
    locator.say(with_notes(exported, notes))
    if counts.missing.count:
        hint = locator.hint(counts.missing)
        locator.say(f"the first image left out: {counts.missing.first}", hint=hint)
    if counts.renamed:
        shown = ", ".join(counts.renamed_examples)
        rest = counts.renamed - len(counts.renamed_examples)
        more = f", and {rest:,} more" if rest else ""
        locator.say(f"renamed, as the name is taken or not valid: {shown}{more}")
