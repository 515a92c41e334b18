"""import: write annotations from other tools as ground-truth rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pgcli.cli.options import CliCall, FileOptions, command
from pgcli.cli.ui.console import BAR_DELAY, Screen
from pgcli.declare import opt, same
from pgcli.errors import INCOMPLETE, UsageError
from pgcli.pipeline.request.questions import DetectOptions
from pgcli.results.options import (
    ExportOptions,
    ImageOptions,
    LabelOptions,
    format_option,
    read_labels,
)
from pgcli.wording import count, with_notes

if TYPE_CHECKING:
    from pgcli.labels.labelled_image import Annotations, ImportSettings
    from pgcli.labels.rows import TruthRows

_rows = partial(opt, panel="Rows", own=True)

#: The options that only one format has.
OPTIONS_OF_FORMAT = {"labelstudio": {"image_prefix"}, "yolo": {"label", "label_file"}}
IMAGES_HINT = "--images names the folder that contains the images"
NO_IMAGE_HINT = "name a file that lists images, or a folder that contains them"
NOTHING_HINT = "docs/reference/formats.md says which regions and texts are read"
YOLO_HINT = (
    "each image in images/ needs a file of the same name in labels/; "
    "if images are links, --images names the folder that they lead to"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOptions(FileOptions):
    """The options of `import`."""

    from_: str = format_option("imports", "Which images")
    prompt: str | None = _rows(
        "Prompt of every row.",
        metavar="TEXT",
        default_text="detect and all labels, or caption en",
    )
    each: bool = same(DetectOptions, "each")
    images: str | None = same(ImageOptions, "images", default_text="the working directory")
    image_prefix: str | None = same(ExportOptions, "image_prefix")
    label: tuple[str, ...] = same(LabelOptions, "label")
    label_file: str | None = same(LabelOptions, "label_file")


@command(
    "import",
    "FILE is a COCO or Label Studio JSON file, a YOLO folder, a table or an archive. The output is "
    "a result file and a manifest in one: image, id, prompt, answer, boxes in pixels, and masks.",
    ImportOptions,
    examples="$ pgcli import tasks.json --from labelstudio --images photos -o truth.jsonl",
)
def import_(
    file: Annotated[str, typer.Argument(metavar="FILE", hidden=True)], call: CliCall
) -> None:
    from pgcli.labels.labelled_image import ImportSettings
    from pgcli.labels.rows import TruthRows
    from pgcli.output.result_file import result_target, write_result_file

    options, screen = call.build(ImportOptions), Screen(quiet=call.quiet, bar_delay=BAR_DELAY)
    check_import(options)
    unused = {*chain(*OPTIONS_OF_FORMAT.values())} - OPTIONS_OF_FORMAT.get(options.from_, set())
    call.report_unused(unused, f"on {options.from_}", screen)
    target = result_target(options.output, overwrite=options.overwrite)
    names = read_labels(options.label, options.label_file) if options.from_ == "yolo" else []
    settings = ImportSettings(Path(options.images or "."), options.image_prefix, names)
    annotations = read_on_screen(Path(file), options.from_, settings, screen)
    rows = TruthRows(annotations, target.path.parent, options.prompt, options.each)
    rows.check_ids()
    hint = YOLO_HINT if options.from_ == "yolo" else IMAGES_HINT
    if not any(True for _ in rows):
        first = settings.counts.missing.first
        note = f"; first skipped image: {first}" if first else ""
        text = with_notes(f"{file} has no annotated image", rows.notes(settings.counts))
        if not first:
            hint = NOTHING_HINT if annotations.images or settings.counts.skipped else NO_IMAGE_HINT
        raise UsageError(text + note, hint=hint)
    absent = annotations.absent
    if absent.count == annotations.image_count:
        raise UsageError(f"none of the images in {file} exist (first: {absent.first})", hint=hint)
    with screen.status("writing rows"):
        count = write_result_file(target, lambda: rows, rows.schema)
    report_import(options.output, count, rows, settings, screen, hint)
    if settings.counts.missing.count:
        raise typer.Exit(INCOMPLETE)


def check_import(options: ImportOptions) -> None:
    """Raise UsageError for options that are wrong."""
    prompt, each, images = options.prompt, options.each, options.images
    if prompt is not None and (each or not prompt.strip()):
        message = "--prompt and --each exclude each other" if each else "--prompt is empty"
        raise UsageError(message, hint="omit one of them" if each else "name a prompt")
    if images is not None and not Path(images).is_dir():
        raise UsageError(f"{images} is not a folder", hint=IMAGES_HINT)


def read_on_screen(
    file: Path, format: str, settings: ImportSettings, screen: Screen
) -> Annotations:
    """The annotations in the file. Raises UsageError."""
    from pgcli.images.decode import silence_decoders
    from pgcli.labels import upright

    silence_decoders()
    with screen.status("reading annotations"):
        return upright.read_annotations(format, file, settings)


def report_import(
    output: str,
    written: int,
    rows: TruthRows,
    settings: ImportSettings,
    screen: Screen,
    hint: str,
) -> None:
    """Report written rows and skipped images, with the hint for the latter."""
    counts, annotations = settings.counts, rows.annotations
    boxes = [box for image in annotations.images for box in image.boxes]
    notes = [
        (sum(mask is not None for _, mask in boxes), "of them with masks"),
        *rows.notes(counts),
    ]
    images = count(annotations.image_count, "image")
    made = f"{count(written, 'row')} of {images}, {count(len(boxes), 'box')}"
    screen.info(with_notes(f"{output}: {made}", notes))
    for note in counts.notes:
        screen.info(note)
    if counts.missing.count:
        screen.info(f"first skipped image: {counts.missing.first}", hint=hint)
    if (absent := annotations.absent).count:
        screen.info(
            f"{count(absent.count, 'image')} not found or not readable (first: {absent.first})",
            hint=hint,
        )
