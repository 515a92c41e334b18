"""Writes the rows of result files in the format of another tool, and reports what was written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from pathlib import Path

from pgcli import registry
from pgcli.box_filter import NO_FILTER, BoxFilter
from pgcli.errors import NoInputError, UsageError
from pgcli.pipeline.progress.events import OnEvent, ignore, tracked
from pgcli.results.exports.entry import Export, ExportCounts, ExportFormat
from pgcli.results.exports.export_entries import ExportEntries
from pgcli.results.exports.rows import RowStats, SeveralFiles, collect_stats
from pgcli.results.gallery.run_info import incomplete_note
from pgcli.results.images import ImageLocator
from pgcli.results.options import ExportOptions, read_labels
from pgcli.rows import CUT_ANSWERS
from pgcli.stores import Reader
from pgcli.stores.target import Target
from pgcli.wording import count, listed, with_notes


def export(
    results: Sequence[str],
    options: ExportOptions,
    box_filter: BoxFilter = NO_FILTER,
    url_reader: Reader | None = None,
    on_event: OnEvent = ignore,
) -> ExportCounts:
    """Write the rows of result files in another format, and count the written and skipped ones.

    `box_filter` selects the boxes, and `url_reader` reads images at URLs. Options that do not
    apply to the format are ignored. The rows are read twice, first for statistics. Raises
    UsageError, NoInputError, OutputExists and OutputFailed.
    """
    format: ExportFormat = registry.load("exports", options.to)
    options = format.applied(options)
    locator = ImageLocator(on_event, options.images, url_reader)
    target = None
    if options.output is not None or not format.is_merged:  # else texts go next to the images
        target = Target(
            name=options.output or "",
            kind="folder" if format.is_merged else "whole folder" if format.is_folder else "file",
            overwrite=options.overwrite or format.is_merged,
            inputs=results,
        )
        target.check()
    paths = [Path(name) for name in results]
    notes = [note for note in map(incomplete_note, paths) if note]
    rows = SeveralFiles(paths, box_filter, exact=format.keeps_types)
    stats = collect_stats(tracked(rows, on_event, "reading rows", unit="rows"), options.only_prompt)
    check_rows(format, ", ".join(results), stats, options)
    exported = Export(options, stats, label_numbers(options, stats))
    entries = ExportEntries(paths, format, exported, locator, target).entries(rows)
    counted = tracked(entries, on_event, "images", stats.images, unit="images")
    with closing(counted), target.publish() if target else nullcontext(Path()) as path:
        format.write(path, counted, exported)
    report_export(format, exported, locator)
    for note in notes:
        locator.say(f"{note}; the export ends there")
    return exported.counts


def check_rows(format: ExportFormat, results: str, stats: RowStats, options: ExportOptions) -> None:
    """Raise UsageError if the rows do not suit the format, NoInputError if there are none."""
    to = options.to
    prompts = ", ".join(map(repr, stats.prompts))
    if not stats.exported:
        if stats.other_prompts:
            raise NoInputError(
                f"no row of {results} has the prompt {options.only_prompt!r}",
                hint=f"its prompts are {prompts}",
            )
        errors = f": {count(stats.errors, 'row')} with errors" if stats.errors else ""
        raise NoInputError(f"no row of {results} has an answer{errors}", hint="name another file")
    if stats.task in ("score", "embed") and to not in ("csv", "parquet"):
        raise UsageError(
            f"{to} is for answers, and {results} has rows of {stats.task}",
            hint="--to csv and --to parquet take them",
        )
    if format.needs_boxes and not stats.has_boxes:
        raise UsageError(
            f"{to} is for boxes, and {results} has no rows of detect or segment",
            hint="coco, csv, txt and imagefolder take other answers",
        )
    most = {"answers": stats.answers, "texts": stats.texts, None: 0}[format.max_one]
    if most > 1:
        raise UsageError(
            f"{to} takes one answer for each image, and {results} has up to {most}",
            hint=f"choose one with --only-prompt TEXT: {prompts}",
        )


def label_numbers(options: ExportOptions, stats: RowStats) -> Mapping[str, int]:
    """Every label with its number: in the order given, otherwise sorted.

    Raises UsageError for an invalid list, and for rows with a label that is not in it.
    """
    labels = read_labels(options.label, options.label_file)
    if not labels:
        return {label: number for number, label in enumerate(sorted(stats.labels))}
    if unknown := sorted(stats.labels - set(labels)):
        raise UsageError(
            f"the rows have labels without a number: {listed(unknown)}",
            hint="name them with --label too, or drop --label and --label-file to number all "
            "labels, sorted",
        )
    return {label: number for number, label in enumerate(labels)}


def report_export(format: ExportFormat, export: Export, locator: ImageLocator) -> None:
    """Report the written and the skipped rows and images."""
    options, stats, counts = export.options, export.stats, export.counts
    output = options.output or "files next to the images"
    outside = stats.outside if "label" in format.options else 0  # the others have these boxes
    captions = f" with {counts.captions:,} captions" if counts.captions else ""
    boxes = f" with {count(counts.boxes, 'box')}" if stats.has_boxes else captions
    notes = [
        (counts.copied, "images copied: only files can be linked to"),
        (counts.unsupported, "images that Ultralytics does not read: GIF, PPM, .jpe and .jfif"),
        (counts.rotated, "images turned upright by EXIF"),
        (outside, "boxes with no area in the image skipped"),
        (stats.cut, CUT_ANSWERS),
        (stats.errors, "rows with errors skipped"),
        (stats.other_prompts, "rows with other prompts skipped"),
        (counts.boxes_without_mask, "boxes written as rectangles, without a mask"),
        (counts.kept, "texts exist and are kept"),
        (counts.missing.count, "images that cannot be read skipped"),
        (counts.unnamed, "texts not written: the name is too long or taken"),
    ]
    exported = f"exported {count(counts.images, 'image')}{boxes} as {options.to} to {output}"
    locator.say(with_notes(exported, notes))
    if counts.missing.count:
        hint = locator.hint(counts.missing)
        locator.say(f"the first skipped image: {counts.missing.first}", hint=hint)
    if counts.renamed:
        names = listed(counts.renamed_examples, total=counts.renamed)
        locator.say(f"renamed, as the name is taken or not valid: {names}")
