"""Writes the rows of result files in the format of another tool, and reports what was written."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from pathlib import Path, PurePosixPath

from pgcli import registry
from pgcli.boxes import NO_FILTER, BoxFilter
from pgcli.errors import NoInputError, UsageError
from pgcli.images import ImageError, ImageHeader, ImageLimits
from pgcli.images.decode import silence_decoders
from pgcli.images.files import read_original
from pgcli.images.formats import whole_header
from pgcli.inputs.options import IMAGE_ENDINGS
from pgcli.output.reader import Row
from pgcli.records import Fault, Item
from pgcli.results.exports.rows import (
    Export,
    ExportCounts,
    ExportEntry,
    ExportFormat,
    FileNames,
    FileRow,
    RowStats,
    SeveralFiles,
    collect_stats,
    folder_name,
    valid_rows,
)
from pgcli.results.gallery import incomplete_note
from pgcli.results.image_locator import ImageLocator, ImageRef
from pgcli.results.options import ExportOptions, read_labels
from pgcli.results.overlay import SUFFIXES
from pgcli.rows import CUT_ANSWERS
from pgcli.run.events import OnEvent, ignore, tracked
from pgcli.stores import Reader
from pgcli.stores.files import parse_path
from pgcli.stores.urls import url_scheme
from pgcli.stores.writing import Target
from pgcli.text import count, encodable, listed, with_notes


class ExportEntries:
    """The images of the rows of result files for one export, located one by one."""

    def __init__(
        self,
        outputs: Sequence[Path],
        format: ExportFormat,
        export: Export,
        locator: ImageLocator,
        target: Target | None,
    ):
        self._outputs, self._format, self._export = outputs, format, export
        self._locator = locator
        self._target = None if format.is_merged else target
        self._names = FileNames(
            frozenset() if format.unique_stems else IMAGE_ENDINGS, self._sanitize
        )

    def entries(self, rows: Iterable[FileRow]) -> Iterator[ExportEntry]:
        """One entry for each image, with a unique name.

        Raises UsageError for an image outside the folder that paths are relative to, and for a
        source of the run or an image in the target, which is replaced.
        """
        if (target := self._target) is not None:
            for source in self._locator.source_paths(self._outputs):
                target.refuse_inside(source)
        silence_decoders()
        options = self._export.options
        folder = options.images if self._format.writes_paths else None
        valid = valid_rows(rows, options.only_prompt, RowStats())
        for number, (_, same) in enumerate(groupby(valid, key=attrgetter("image")), start=1):
            file_rows = tuple(same)
            group = tuple(file_row.row for file_row in file_rows)
            ref = ImageRef.of(group[0], self._outputs[file_rows[0].file])
            image = self._locate(number, group, ref)
            if not self._format.reads_images and (fault := image.size_fault):
                self._export.counts.missing.add(ref.image or ref.id, fault)
                continue
            names = self._claim_name(number, group[0], image)
            address = ref.image if folder is None else self._relative_path(folder, ref)
            is_url = url_scheme(address) is not None
            if target is not None and self._format.is_folder and image.path is not None:
                target.refuse_inside(image.path)
            yield ExportEntry(number, address, group, *names, image.path, image.read, is_url)

    def _locate(self, number: int, rows: Sequence[Row], ref: ImageRef) -> RowImage:
        """The image with its bytes, or only its file if the format needs no more."""
        format = self._format
        if format.reads_images and self._export.options.store_images != "none":
            item = self._locator.item(number, ref)
        else:
            draws = format.writes_paths or format.reads_images
            needs_file = format.is_merged or (draws and any(row["boxes"] for row in rows))
            needs_file = needs_file and not url_scheme(ref.image)
            path = self._locator.find_file(ref) if needs_file else None
            item = Item(number, ref.id, ref.image, path)
        # a text file is written next to the image even if the image has changed
        size = None if format.is_merged else (rows[0]["width"], rows[0]["height"])
        return RowImage(item, size, self._locator.url_reader)

    def _sanitize(self, part: str, is_folder: bool) -> str:
        """An allowed name for a folder or file."""
        image_endings = frozenset[str]() if self._format.is_merged else IMAGE_ENDINGS
        if self._format.sanitize_name is not None:
            part = self._format.sanitize_name(part, is_folder)
        return folder_name(part, image_endings | self._format.suffixes, is_folder=is_folder)

    def _claim_name(self, number: int, row: Row, image: RowImage) -> tuple[str, str]:
        """The unique name of the image in the export, or of its text, and the name's stem."""
        format, id_ = self._format, row["id"]
        suffixes = (PurePosixPath(parse_path(name)).suffix for name in (id_, row["image"]))
        ending = next((suffix for suffix in suffixes if suffix.lower() in IMAGE_ENDINGS), "")
        default = ending or (image.ending if format.reads_images else "")
        if not format.is_folder:
            return f"{number:09}{default.lower()}", f"{number:09}"
        # a text file has the bytes of the image's name; names in an index are UTF-8
        wish = parse_path(id_) if format.is_merged else encodable(parse_path(id_))
        wish = wish.removesuffix(ending) if format.unique_stems else wish
        if format.is_merged:  # texts of several images may have one stem: `Sidecars` names them
            self._names = FileNames(frozenset(), self._sanitize)
            (default,) = format.suffixes
            default = ending if ending and id_.endswith(ending) else default
        claimed = self._names.claim(wish, number)
        name = claimed.with_ending(default)
        if name != (own_name := claimed.wish + ("" if claimed.ending else default)):
            self._export.counts.add_renamed(own_name, name)
        return name, claimed.stem

    def _relative_path(self, folder: str, ref: ImageRef) -> str:
        """The path of the image relative to the folder. Raises UsageError for an image outside."""
        image, path = ref.image, ".."
        if image and not url_scheme(image):
            file = self._locator.find_file(ref) or self._locator.path_in_run(ref)
            path = os.path.relpath(file, folder)
        if path == ".." or path.startswith("../"):
            raise UsageError(
                f"{image} is not in {folder}",
                hint="--images names a folder that contains all images; omit it for absolute paths",
            )
        return encodable(path)


CHANGED = "changed"  # the code of an image that has another size


class RowImage:
    """An image: a file, bytes, or a URL. `size` is the expected one, None for any."""

    def __init__(
        self,
        item: Item,
        size: tuple[int, int] | None,
        url_reader: Reader | None,
    ):
        self._item, self._size, self._url_reader = item, size, url_reader

    @cached_property
    def path(self) -> str | None:
        """The image file, if it exists and has the rows' size, or an image ending for any size.

        It is checked because a row of another program may name any file of the user.
        """
        path = self._item.path
        if path is None or self._item.span is not None or url_scheme(path) is not None:
            return None
        if not os.path.isfile(path):  # noqa: PTH113 - Path raises for long names
            return None
        has_ending = self._size is None and Path(path).suffix.lower() in IMAGE_ENDINGS
        return path if has_ending or self.ending else None

    @cached_property
    def ending(self) -> str:
        """The file ending of the image's format; empty if it cannot be read."""
        header = self._header
        return "" if isinstance(header, Fault) else SUFFIXES[header.format]

    def read(self) -> bytes:
        """The bytes of the image. Raises `ImageError` if it cannot be read or has changed."""
        if isinstance(self._header, Fault):
            raise ImageError(self._header)
        return read_original(self._item, ImageLimits(), self._url_reader)

    @property
    def size_fault(self) -> Fault | None:
        """The fault of an image of another size, or None."""
        header = self._header
        return header if isinstance(header, Fault) and header.code == CHANGED else None

    @cached_property
    def _header(self) -> ImageHeader | Fault:
        """The header of the image, or the fault of an unreadable image or of another size."""
        try:
            header = whole_header(self._item, self._url_reader)
        except ImageError as problem:
            return problem.fault
        if self._size not in (None, header.size):
            text = " x ".join(map(str, self._size or ()))
            now = f"{header.size.width} x {header.size.height}"
            message = f"The image changed since it was answered: it has {now} pixels, not {text}."
            return Fault(CHANGED, message)
        return header


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
