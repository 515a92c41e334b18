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
from pgcli.results.options import (
    ExportOptions,
    ImageOptions,
    LabelOptions,
    format_option,
    read_labels,
)
from pgcli.run.request.questions import DetectOptions
from pgcli.text import count, with_notes

if TYPE_CHECKING:
    from pgcli.labels.labelled_image import Labels, LabelSettings, LeftOut

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
    from pgcli.labels.labelled_image import LabelSettings
    from pgcli.labels.rows import TruthRows, check_ids, skipped
    from pgcli.output.result_file import result_target, write_result_file

    options, screen = call.build(ImportOptions), Screen(quiet=call.quiet, bar_delay=BAR_DELAY)
    check_import(options)
    unused = {*chain(*OPTIONS_OF_FORMAT.values())} - OPTIONS_OF_FORMAT.get(options.from_, set())
    call.report_unused(unused, f"on {options.from_}", screen)
    target = result_target(options.output, overwrite=options.overwrite)
    names = read_labels(options.label, options.label_file) if options.from_ == "yolo" else []
    settings = LabelSettings(Path(options.images or "."), options.image_prefix, names)
    labels, counts = read_on_screen(Path(file), options.from_, settings, screen), settings.counts
    check_ids(labels, options.prompt)
    rows = TruthRows(labels, target.path.parent, options.prompt, options.each)
    hint = YOLO_HINT if options.from_ == "yolo" else IMAGES_HINT
    if not any(True for _ in rows):
        _, first = counts.images
        note = f"; first skipped image: {first}" if first else ""
        text = with_notes(f"{file} has no annotated image", skipped(labels, counts))
        if not first:
            hint = NOTHING_HINT if labels.images or counts.kinds else NO_IMAGE_HINT
        raise UsageError(text + note, hint=hint)
    absent, first = counts.absent
    if absent == len({image.id for image in labels.images}):
        raise UsageError(f"none of the images in {file} exist (first: {first})", hint=hint)
    with screen.status("writing rows"):
        count = write_result_file(target, lambda: rows, rows.schema)
    report_import(options.output, count, labels, counts, screen, hint)
    if counts.images[0]:
        raise typer.Exit(INCOMPLETE)


def check_import(options: ImportOptions) -> None:
    """Raise UsageError for options that are wrong."""
    prompt, each, images = options.prompt, options.each, options.images
    if prompt is not None and (each or not prompt.strip()):
        message = "--prompt and --each exclude each other" if each else "--prompt is empty"
        raise UsageError(message, hint="omit one of them" if each else "name a prompt")
    if images is not None and not Path(images).is_dir():
        raise UsageError(f"{images} is not a folder", hint=IMAGES_HINT)


def read_on_screen(file: Path, format: str, settings: LabelSettings, screen: Screen) -> Labels:
    """The labels in the file. Raises UsageError."""
    from pgcli.images.decode import silence_decoders
    from pgcli.labels.upright import read_upright

    silence_decoders()
    with screen.status("reading annotations"):
        return read_upright(format, file, settings)


def report_import(
    output: str, written: int, labels: Labels, counts: LeftOut, screen: Screen, hint: str
) -> None:
    """Report written rows and skipped images, with the hint for the latter."""
    from pgcli.labels.columns import note_of_choices
    from pgcli.labels.rows import skipped

    objects = [o for image in labels.images for o in image.objects or ()]
    notes = [(sum(o.mask is not None for o in objects), "of them with masks")]
    images = count(len({image.id for image in labels.images}), "image")
    made = f"{count(written, 'row')} of {images}, {count(len(objects), 'box')}"
    screen.info(with_notes(f"{output}: {made}", [*notes, *skipped(labels, counts)]))
    for note in filter(None, (note_of_choices(labels.choices), *counts.notes)):
        screen.info(note)
    if counts.images[0]:
        screen.info(f"first skipped image: {counts.images[1]}", hint=hint)
    absent, first = counts.absent
    if absent:
        screen.info(
            f"{count(absent, 'image')} not found or not readable (first: {first})", hint=hint
        )
