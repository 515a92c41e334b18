"""The options of an export, checked against its format and its rows."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from pgcli.box_filter import BoxFilter
from pgcli.errors import NoInputError, UsageError
from pgcli.inputs.paths import resolves_inside
from pgcli.results.exports import FORMATS, format_named
from pgcli.results.exports.entry import (
    ExportCounts,
    ExportFormat,
    ExportSettings,
    StoreImages,
)
from pgcli.results.exports.rows import RowStats
from pgcli.results.images import ImageLocator
from pgcli.results.publish import check_target
from pgcli.run.progress.events import OnEvent
from pgcli.stores import make_reader
from pgcli.stores.files import read_text
from pgcli.wording import listed

MAX_LABELS_SHOWN = 5  # labels that a message names
#: Options of every format.
COMMON_OPTIONS = {"prompt", "overwrite", "root", "allow_urls", "allow_private_hosts"}
#: Options of every format except texts, which have no boxes.
BOX_OPTIONS = {"min_score", "min_confidence", "nms"}


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """The options of the command line; None is an option that was not given."""

    prompt: str | None = None
    overwrite: bool = False
    labels: str | None = None
    min_score: float | None = None
    min_confidence: float | None = None
    nms: float | None = None
    store_images: StoreImages | None = None
    root: str | None = None
    image_prefix: str | None = None
    prepend: str | None = None
    append: str | None = None
    csv_raw: bool | None = None
    allow_urls: bool = False
    allow_private_hosts: bool = False

    @property
    def box_filter(self) -> BoxFilter:
        """Which boxes are exported."""
        return BoxFilter(self.min_score, self.min_confidence, self.nms)

    def locator(self, on_event: OnEvent) -> ImageLocator:
        """What finds the images."""
        url_reader = make_reader(
            allow_urls=self.allow_urls, allow_private_hosts=self.allow_private_hosts
        )
        return ImageLocator(on_event, self.root, url_reader)

    def wanted(self, format: ExportFormat, stats: RowStats) -> ExportSettings:
        """What the format is to write. Raises UsageError for unsuitable labels."""
        only = next(iter(stats.prompts)) if len(stats.prompts) == 1 else None
        return ExportSettings(
            prompt=only if self.prompt is None else self.prompt,
            labels=label_numbers(self.labels, stats),
            columns=tuple(stats.columns),
            has_boxes=stats.has_boxes,
            has_masks=stats.has_masks,
            has_labels_alone=stats.task == "classify",
            images=self.store_images or "link",
            image_prefix=self.image_prefix or "",
            prepend=self.prepend or "",
            append=self.append or "",
            overwrite=self.overwrite,
            csv_raw=bool(self.csv_raw),
            counts=ExportCounts(boxes_outside=stats.outside if "labels" in format.options else 0),
        )


def find_format(name: str) -> ExportFormat:
    """The format of this name. Raises UsageError if there is none."""
    if name not in FORMATS:
        raise UsageError(f"{name} is not a format", hint=f"--to takes {', '.join(FORMATS)}")
    return format_named(name)


def check_options(to: str, format: ExportFormat, options: ExportOptions) -> None:
    """Raise UsageError for an option that the format does not have, or that names no folder."""
    if options.root is not None and not Path(options.root).is_dir():
        raise UsageError(f"{options.root} is not a folder", hint="name the folder of the images")
    common = COMMON_OPTIONS if format.is_merged else COMMON_OPTIONS | BOX_OPTIONS
    for name in (field.name for field in fields(options)):
        is_given = getattr(options, name) is not None
        if is_given and name not in format.options | common:
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"{flag} has no effect on {to}", hint=f"leave {flag} out")


def check_output(
    to: str, format: ExportFormat, results: Sequence[str], output: str | None, *, overwrite: bool
) -> Path:
    """The path of the export. Raises UsageError and OutputExists if it cannot be written."""
    if output is None and format.is_merged:
        return Path()
    if not output or output == "-":
        kind = "folder" if format.is_folder else "file"
        raise UsageError(f"{to} is written to a {kind}", hint=f"name the {kind} with -o")
    target = Path(output)
    for name in results:
        if target.exists() and resolves_inside(name, os.path.realpath(target)):
            raise UsageError(f"{name} is in {output}, which is written", hint="name another -o")
    if not format.is_merged:
        check_target(target, is_folder=format.is_folder, overwrite=overwrite)
    elif not target.parent.is_dir() or (os.path.lexists(target) and not target.is_dir()):
        raise UsageError(f"{output} cannot be a folder of texts", hint="name a folder with -o")
    return target


def check_rows(
    to: str, format: ExportFormat, results: str, stats: RowStats, options: ExportOptions
) -> None:
    """Raise UsageError if the rows do not suit the format, NoInputError if there are none."""
    prompts = ", ".join(map(repr, stats.prompts))
    if not stats.exported:
        if stats.other_prompts:
            raise NoInputError(
                f"no row of {results} has the prompt {options.prompt!r}",
                hint=f"its prompts are {prompts}",
            )
        errors = f": {stats.errors:,} rows have errors" if stats.errors else ""
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
            hint=f"choose one with --prompt TEXT: {prompts}",
        )


def label_numbers(given: str | None, stats: RowStats) -> Mapping[str, int]:
    """Every label with its number: in the order given, otherwise sorted.

    Raises UsageError for an invalid list, and for rows with a label that is not in it.
    """
    if given is None:
        return {label: number for number, label in enumerate(sorted(stats.labels))}
    labels = parse_labels(given)
    if not all(labels) or len(set(labels)) < len(labels):
        raise UsageError(
            f"--labels {given} has a duplicate or an empty label",
            hint="--labels cat,dog or a file with a label on each line",
        )
    if unknown := sorted(stats.labels - set(labels)):
        raise UsageError(
            f"the rows have labels that are not in --labels: {listed(unknown, MAX_LABELS_SHOWN)}",
            hint="add them to --labels, or leave it out to take all labels, sorted",
        )
    return {label: number for number, label in enumerate(labels)}


def parse_labels(given: str) -> Sequence[str]:
    """The labels of a file, one on each line, or those of a list with commas."""
    try:
        if Path(given).is_file():
            lines = read_text(given, "utf-8-sig").splitlines()
            return [line.strip() for line in lines if line.strip()]
    except (OSError, ValueError) as problem:
        raise UsageError(
            f"--labels {given} cannot be read: {problem}", hint="name a text file in UTF-8"
        ) from problem
    return [label.strip() for label in given.split(",")]
