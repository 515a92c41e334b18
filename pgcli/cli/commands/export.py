"""export: the rows of a result file, written as another tool reads them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path

from pgcli.cli.result_files.export_entries import ExportEntries
from pgcli.cli.result_files.image_locator import ImageSearch, Report
from pgcli.cli.result_files.publish import check_target, publish
from pgcli.cli.result_files.run_info import incomplete_note
from pgcli.cli.result_files.validate_rows import RowStats, collect_stats
from pgcli.cli.ui.console import Screen
from pgcli.errors import NoInputError, UsageError
from pgcli.remote import make_url_reader
from pgcli.sinks.reader import read_results
from pgcli.sources.paths import resolves_inside
from pgcli.state.write_errors import wrap_write_errors
from pgcli.views.exports import FORMATS, format_named
from pgcli.views.exports.entry import (
    ExistingTexts,
    ExportCounts,
    ExportEntry,
    ExportFormat,
    ExportSettings,
    StoreImages,
)

MAX_LABELS_SHOWN = 5  # labels and prompts that a message names
INCOMPLETE = 3


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What the command line says beside the names; what is not said is None."""

    prompt: str | None = None
    overwrite: bool = False
    labels: str | None = None
    pictures: StoreImages | None = None
    root: str | None = None
    image_prefix: str | None = None
    prepend: str | None = None
    append: str | None = None
    existing: ExistingTexts | None = None
    csv_raw: bool | None = None
    allow_urls: bool = False
    allow_private_hosts: bool = False

    def search(self, tell: Report) -> ImageSearch:
        """How pictures are looked for."""
        url_reader = make_url_reader(
            allow_urls=self.allow_urls, allow_private_hosts=self.allow_private_hosts
        )
        return ImageSearch(tell, url_reader=url_reader)


#: These say something to every format.
EVERY_FORMAT = {"prompt", "overwrite", "allow_urls", "allow_private_hosts"}


def export(path: str, to: str, output: str | None, choices: ExportOptions, screen: Screen) -> int:
    """Write the rows of a result file in a format; the exit code, 3 where pictures are missing.

    The rows are read twice: first for what they are. Raises UsageError, NoInputError, OutputExists
    and OutputFailed.
    """
    format = find_format(to)
    check_options(to, format, choices)
    target = check_place(to, format, path, output, overwrite=choices.overwrite)
    note = incomplete_note(Path(path))
    found = collect_stats(read_results(Path(path)), choices.prompt)
    check_rows(to, format, path, found, choices)
    counts = ExportCounts(boxes_outside=found.outside if "labels" in format.options else 0)
    wanted = ExportSettings(
        labels=label_numbers(choices.labels, found),
        columns=tuple(found.columns),
        has_boxes=found.looks,
        has_masks=found.masks,
        images=choices.pictures or "link",
        image_prefix=choices.image_prefix or "",
        prepend=choices.prepend or "",
        append=choices.append or "",
        existing=choices.existing or ("overwrite" if choices.overwrite else "skip"),
        csv_raw=bool(choices.csv_raw),
        counts=counts,
    )
    search = choices.search(screen.info)
    pictures = ExportEntries(Path(path), format, wanted, search)
    if not format.is_merged:
        pictures.spare(target)
    # a run may go on meanwhile: its later rows were not surveyed
    rows = islice(read_results(Path(path)), found.rows)
    entries = pictures.entries(rows, choices.prompt, choices.root)
    write(format, target, entries, wanted, overwrite=choices.overwrite)
    report(to, output or "beside the pictures", found, counts, search)
    if note:
        search.tell(f"{note}; the export ends there")
    return INCOMPLETE if counts.missing.count or counts.unnamed else 0


def write(
    format: ExportFormat,
    target: Path,
    entries: Iterator[ExportEntry],
    wanted: ExportSettings,
    *,
    overwrite: bool,
) -> None:
    """Write the export: among files that are there, or as a whole."""
    if format.is_merged:
        with wrap_write_errors(target):
            target.mkdir(exist_ok=True)
        format.write(target, entries, wanted)
        return
    with publish(target, is_folder=format.is_folder, overwrite=overwrite) as part:
        format.write(
            part, check_not_inside(entries, target) if format.is_folder else entries, wanted
        )


def find_format(to: str) -> ExportFormat:
    """The format of a name. Raises UsageError for one that is none."""
    if to not in FORMATS:
        raise UsageError(f"{to} is no format", hint=f"--to takes {', '.join(FORMATS)}")
    return format_named(to)


def check_options(to: str, format: ExportFormat, choices: ExportOptions) -> None:
    """Raise UsageError for an option that this format has nothing to do with."""
    for name in (field.name for field in fields(choices)):
        is_given = getattr(choices, name) is not None
        if is_given and name not in format.options | EVERY_FORMAT:
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"{flag} means nothing to {to}", hint=f"leave {flag} out")


def check_place(
    to: str, format: ExportFormat, path: str, output: str | None, *, overwrite: bool
) -> Path:
    """Where the export goes. Raises UsageError and OutputExists where it cannot."""
    if output is None and format.is_merged:
        return Path()
    if not output or output == "-":
        kind = "folder" if format.is_folder else "file"
        raise UsageError(f"{to} is written to a {kind}", hint=f"name the {kind} with -o")
    target = Path(output)
    if target.exists() and resolves_inside(path, os.path.realpath(target)):
        raise UsageError(f"{path} lies in {output}, which is written", hint="name another with -o")
    if not format.is_merged:
        check_target(target, is_folder=format.is_folder, overwrite=overwrite)
    elif not target.parent.is_dir() or (os.path.lexists(target) and not target.is_dir()):
        raise UsageError(f"{output} cannot be a folder of texts", hint="name a folder with -o")
    return target


def check_rows(
    to: str, format: ExportFormat, path: str, found: RowStats, choices: ExportOptions
) -> None:
    """Raise where the rows do not suit the format: UsageError, or NoInputError without any."""
    prompts = ", ".join(map(repr, found.prompts))
    if not found.good:
        if found.others:
            raise NoInputError(
                f"no row of {path} has the prompt {choices.prompt!r}",
                hint=f"there are {prompts}",
            )
        errors = f": {found.errors:,} rows have errors" if found.errors else ""
        raise NoInputError(f"no row of {path} has an answer{errors}", hint="name another file")
    if format.needs_boxes and not found.looks:
        raise UsageError(
            f"{to} is for boxes, and the rows of {path} are of no task that finds any",
            hint="detect and segment find boxes; coco, csv, txt and imagefolder take answers",
        )
    most = {"answers": found.answers, "texts": found.texts, None: 0}[format.max_one]
    if most > 1:
        raise UsageError(
            f"{to} holds one answer for a picture, and {path} has up to {most}",
            hint=f"pick one with --prompt TEXT: {prompts}",
        )


def label_numbers(given: str | None, found: RowStats) -> Mapping[str, int]:
    """Every label with its place: in the given order, else sorted.

    Raises UsageError for a list that is none, and where the rows have a label that it lacks.
    """
    if given is None:
        return {label: place for place, label in enumerate(sorted(found.labels))}
    labels = parse_labels(given)
    if not all(labels) or len(set(labels)) < len(labels):
        raise UsageError(
            f"--labels {given} has a label twice or an empty one",
            hint="--labels cat,dog or a file with a label on each line",
        )
    if unknown := sorted(found.labels - set(labels)):
        shown, rest = ", ".join(unknown[:MAX_LABELS_SHOWN]), len(unknown) - MAX_LABELS_SHOWN
        more = f" and {rest:,} more" if rest > 0 else ""
        raise UsageError(
            f"the rows have labels that --labels has not: {shown}{more}",
            hint="add them to --labels; without it all labels are taken, sorted",
        )
    return {label: place for place, label in enumerate(labels)}


def parse_labels(given: str) -> Sequence[str]:
    """The labels of a file, one on each line, or those that are given."""
    try:
        if Path(given).is_file():
            lines = Path(given).read_text(encoding="utf-8-sig").splitlines()
            return [line.strip() for line in lines if line.strip()]
    except (OSError, ValueError) as problem:
        raise UsageError(
            f"--labels {given} cannot be read: {problem}", hint="name a text in UTF-8"
        ) from problem
    return [label.strip() for label in given.split(",")]


def check_not_inside(pictures: Iterator[ExportEntry], target: Path) -> Iterator[ExportEntry]:
    """The same. Raises UsageError for a picture within what may be replaced."""
    root = os.path.realpath(target)
    for entry in pictures:
        try:
            is_inside = entry.path is not None and resolves_inside(entry.path, root)
        except ValueError:  # no file has such a name
            is_inside = False
        if is_inside:
            raise UsageError(
                f"{entry.image} lies in {target}, which is written", hint="name another with -o"
            )
        yield entry


def report(to: str, place: str, found: RowStats, counts: ExportCounts, search: ImageSearch) -> None:
    """Say what was written and what was not."""
    captions = f" with {counts.captions:,} captions" if counts.captions else ""
    boxes = f" with {counts.boxes:,} boxes" if found.looks else captions
    notes = [
        (counts.copied, "pictures copied, as they are no files that could be linked to"),
        (counts.unsupported, "pictures that Ultralytics passes over: GIF and PPM"),
        (counts.rotated, "pictures turned upright, as their EXIF says"),
        (counts.boxes_outside, "boxes left out, as they have no area in their picture"),
        (found.errors, "rows with errors left out"),
        (found.others, "rows of other prompts left out"),
        (counts.boxes_without_mask, "boxes without a mask written as rectangles"),
        (counts.kept, "texts that were there stay as they are"),
        (counts.missing.count, "pictures left out, as they cannot be read"),
        (counts.unnamed, "texts not written, as no name was left"),
    ]
    more = "".join(f"; {count:,} {what}" for count, what in notes if count)
    search.tell(f"exported {counts.images:,} pictures{boxes} as {to} to {place}{more}")
    if counts.missing.count:
        hint = search.hint(counts.missing)
        search.tell(f"the first that is left out: {counts.missing.first}", hint=hint)
    if counts.renamed:
        examples = counts.renamed_examples
        rest = counts.renamed - len(examples)
        others = f", and {rest:,} more" if rest else ""
        search.tell(f"names that were taken or would be misread: {', '.join(examples)}{others}")
