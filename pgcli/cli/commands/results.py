"""Commands on result files: view, export, apply, import and merge."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pgcli import registry
from pgcli.cli.console import BAR_DELAY, Screen, print_line
from pgcli.cli.options import (
    AddressOptions,
    CliCall,
    FileArgs,
    FileOptions,
    QuietOptions,
    command,
)
from pgcli.declare import opt, same
from pgcli.errors import INCOMPLETE, UsageError
from pgcli.results.options import (
    ExportOptions,
    GalleryOptions,
    ImageOptions,
    LabelOptions,
    format_option,
    read_labels,
)
from pgcli.rows import RowSchema
from pgcli.run.options import OutputOptions
from pgcli.run.questions import BoxOptions, DetectOptions
from pgcli.text import count, listed, with_notes

if TYPE_CHECKING:
    from pgcli.labels.labelled_image import Labels, LeftOut


_review = partial(opt, panel="Review", own=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewOptions(GalleryOptions):
    """The options of `view`."""

    draw: str | None = same(OutputOptions, "draw", own=True)
    images: str | None = same(ImageOptions, "images")
    serve: bool = _review(
        "Serve a page of any number of rows on this machine instead, and save each edit at once.",
        default=False,
    )
    no_open: bool = _review("With --serve, open no browser.", default=False)
    reviewer: str | None = _review("With --serve, save this name with each edit.", metavar="NAME")


@command(
    "view",
    "RESULTS are files or folders of rows, even of an unfinished run, or - for JSON lines on "
    "standard input; several are shown side by side. The page needs no network and no server. It "
    "shows at most 5,000 rows. With --serve, pgcli serves a page of all rows of one file on "
    "127.0.0.1 until it is stopped, and saves the edits to RESULTS.edits.jsonl, which pgcli apply "
    "reads.",
    ViewOptions,
    BoxOptions,
    AddressOptions,
    QuietOptions,
    examples="$ pgcli view captions.jsonl\n$ pgcli view captions.jsonl boxes.jsonl -o gallery.html",
)
def view(results: FileArgs, call: CliCall) -> None:
    if call.build(ViewOptions).serve:
        serve_file(results, call)
        return
    if "-" not in results:
        view_files([Path(name) for name in results], call)
        return
    with TemporaryDirectory(prefix="pgcli-") as folder:
        piped = Path(folder) / "rows.jsonl"
        with piped.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        values = {"output": "rows.html", **call.values}
        files = [piped if name == "-" else Path(name) for name in results]
        view_files(files, replace(call, values=values))


def serve_file(results: Sequence[str], call: CliCall) -> None:
    """Serve the page of a result file until a signal."""
    from pgcli.cli.run_on_screen import RunOnScreen
    from pgcli.results.image_locator import ImageLocator
    from pgcli.results.serving.server import PageServer

    if len(results) > 1 or results[0] == "-":
        raise UsageError(
            "--serve shows the rows of one file, beside which it saves the edits",
            hint="name one result file, or make a page of several with -o",
        )
    options, screen = call.build(ViewOptions), Screen(quiet=call.quiet)
    unused = ("output", "overwrite", "limit", "draw", "min_confidence", "nms")
    call.report_unused(unused, "with --serve", screen)
    url_reader = call.build(AddressOptions).url_reader
    locator = ImageLocator(RunOnScreen(screen), options.images, url_reader)
    server = PageServer(Path(results[0]), locator, options.size, options.reviewer)
    try:
        screen.info(f"edits are saved to {server.log.path} at once; Ctrl-C stops the server")
        print_line(server.url)
        has_screen = sys.platform == "darwin" or {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys()
        if has_screen and not options.no_open:
            # a file, because other users can read the command line of the browser
            link = NamedTemporaryFile("w", suffix=".html")  # noqa: SIM115 - deleted at the end
            link.write(f'<meta http-equiv="refresh" content="0; url={server.url}">')
            link.flush()
            webbrowser.open(Path(link.name).as_uri())
        server.serve()
    finally:
        if edits := server.log.count:
            screen.info(
                f"{server.log.path}: {count(edits, 'edit')} saved",
                hint=f"pgcli apply {shlex.quote(results[0])} -o corrected.jsonl applies them",
            )


def view_files(outputs: list[Path], call: CliCall) -> None:
    """Write the page of result files, and draw the boxes of one."""
    from pgcli.cli.run_on_screen import RunOnScreen
    from pgcli.results.gallery import RowGroup, write_gallery
    from pgcli.results.hooks import draw_rows, draw_target
    from pgcli.results.image_locator import ImageLocator
    from pgcli.run.events import tracked

    options, box_filter = call.build(ViewOptions), call.build(BoxOptions).box_filter
    screen = Screen(quiet=call.quiet, bar_delay=BAR_DELAY)
    call.report_unused(("no_open", "reviewer"), "without --serve", screen)
    on_event = RunOnScreen(screen)

    def make_locator() -> ImageLocator:
        """The locator of the images; its URL reader is closed after a pass through them."""
        return ImageLocator(on_event, options.images, call.build(AddressOptions).url_reader)

    locator = make_locator()
    names = [output.name for output in outputs]
    groups = [
        # its whole path if another file has the same name
        RowGroup(path, name if names.count(name) == 1 else str(path), box_filter=box_filter)
        for path, name in zip(outputs, names, strict=True)
    ]
    if options.draw is not None:
        if len(outputs) > 1:
            raise UsageError("--draw draws the rows of one result file", hint="name one of them")
        draw_target(options.draw, overwrite=options.overwrite).check()
    gallery = write_gallery(groups, options, locator)
    if options.draw is not None:
        rows = tracked(groups[0].rows(options.limit), on_event, "drawings", gallery.rows)
        for name, text in draw_rows(rows, outputs[0], options.draw, make_locator(), gallery.labels):
            screen.info(f"{name}: {text}")


@command(
    "export",
    "RESULTS are result files (.jsonl or .parquet) or folders of Parquet files; rows of the same "
    "image are combined, and failed rows are skipped.",
    ExportOptions,
    BoxOptions,
    AddressOptions,
    QuietOptions,
    examples="$ pgcli export boxes.jsonl --to coco -o boxes.json\n"
    "$ pgcli export captions.jsonl --to txt",
)
def export(results: FileArgs, call: CliCall) -> None:
    from pgcli.cli.run_on_screen import RunOnScreen
    from pgcli.results.exports.export import export as write_export

    screen, options = Screen(quiet=call.quiet, bar_delay=BAR_DELAY), call.build(ExportOptions)
    format = registry.load("exports", options.to)
    thresholds = call.typed & {*BoxOptions.__slots__}
    call.report_unused(format.unused, f"on {options.to}", screen)
    if format.is_merged and thresholds:
        raise UsageError(
            f"{options.to} exports answers unchanged, with all boxes",
            hint=f"omit --{min(thresholds).replace('_', '-')}",
        )
    box_filter = call.build(BoxOptions).box_filter
    url_reader = call.build(AddressOptions).url_reader
    counts = write_export(results, options, box_filter, url_reader, RunOnScreen(screen))
    if counts.missing.count or counts.unnamed:
        raise typer.Exit(INCOMPLETE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyOptions(FileOptions):
    """The options of `apply`."""

    rows: Literal["not-rejected", "accepted", "all"] = opt(
        "Rows to write: not-rejected, accepted (unreviewed rows are dropped), or all.",
        panel="Where to",
        metavar="WHICH",
        default="not-rejected",
        own=True,
    )


@command(
    "apply",
    "RESULTS is the result file that the page shows, EDITS the file that the page saved; without "
    "EDITS, pgcli reads RESULTS.edits.jsonl, which pgcli view --serve wrote. If the row of an edit "
    "is missing or its answer has changed, pgcli skips the edit, lists it, and exits with 3.",
    ApplyOptions,
    examples="$ pgcli apply captions.jsonl -o corrected.jsonl\n"
    "$ pgcli apply captions.edits.json captions.jsonl -o reviewed.jsonl",
)
def apply(
    files: Annotated[list[str], typer.Argument(metavar="[EDITS] RESULTS", hidden=True)],
    call: CliCall,
) -> None:
    from pgcli.output import result_target, write_result_file
    from pgcli.output.reader import read_results
    from pgcli.results.edits import EditedRows, edits_file, match_edits, read_edits

    if len(files) > 2:
        raise UsageError("apply reads one result file", hint="pgcli apply [EDITS] RESULTS")
    file = Path(files[-1])
    edits = Path(files[0]) if len(files) == 2 else edits_file(file)
    options, screen = call.build(ApplyOptions), Screen(quiet=call.quiet, bar_delay=BAR_DELAY)
    target, wanted = result_target(options.output, overwrite=options.overwrite), options.rows
    saved = read_edits(edits)
    with screen.progress("reading rows") as progress:
        matched = match_edits(saved, file, progress.track(read_results(file)))
    if saved and not matched.applied:
        raise UsageError(
            f"none of the edits in {edits} match {file}",
            hint="name the result file that the page shows; if it was written again, make a new "
            "page with pgcli view",
        )
    reviewed = EditedRows(file, matched, wanted)
    schema = RowSchema.of(matched.columns)
    with screen.status("writing rows"):
        write_result_file(target, reviewed, schema)
    counts, fate = reviewed.counts, " and dropped"
    notes = [
        (counts["accepted"] - counts["corrected"], "accepted"),
        (counts["corrected"], "corrected"),
        (counts["rejected"], f"rejected{fate if wanted != 'all' else ''}"),
        (counts["open"], f"not reviewed{fate if wanted == 'accepted' else ''}"),
        (matched.elsewhere, "edits of other files"),
    ]
    screen.info(f"{target.name}: {with_notes(count(counts['rows'], 'row'), notes)}")
    for unapplied, reason in (
        (matched.changed, "the answer has changed"),
        (matched.missing, "the row is missing"),
    ):
        if unapplied:
            screen.info(
                f"not applied, {reason}: {listed(unapplied, separator=';')}",
                hint="make the page again with pgcli view, and review these rows there",
            )
    if matched.changed or matched.missing:
        raise typer.Exit(INCOMPLETE)


_rows = partial(opt, panel="Rows", own=True)

#: The options that only one format has.
OPTIONS_OF_FORMAT = {"image_prefix": "labelstudio", "label": "yolo", "label_file": "yolo"}
IMAGES_HINT = (
    "--images names the folder with the images; docs/reference/formats.md says what is read"
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
    from pgcli.images.decode import silence_decoders
    from pgcli.labels.labelled_image import LabelSettings, TruthRows, check_ids, skipped
    from pgcli.labels.sources import read_upright
    from pgcli.output import result_target, write_result_file

    options, screen = call.build(ImportOptions), Screen(quiet=call.quiet, bar_delay=BAR_DELAY)
    if options.prompt is not None and (options.each or not options.prompt.strip()):
        what = "--prompt and --each exclude each other" if options.each else "--prompt is empty"
        raise UsageError(what, hint="omit one of them, or name a prompt")
    if options.images is not None and not Path(options.images).is_dir():
        raise UsageError(f"{options.images} is not a folder", hint=IMAGES_HINT)
    unused = [name for name, own in OPTIONS_OF_FORMAT.items() if own != options.from_]
    call.report_unused(unused, f"on {options.from_}", screen)
    target = result_target(options.output, overwrite=options.overwrite)
    names = read_labels(options.label, options.label_file) if options.from_ == "yolo" else []
    settings = LabelSettings(Path(options.images or "."), options.image_prefix, names)
    counts = settings.counts
    silence_decoders()
    with screen.status("reading annotations"):
        labels = read_upright(options.from_, Path(file), settings)
    check_ids(labels, options.prompt)
    rows = TruthRows(labels, target.path.parent, options.prompt, options.each)
    if not any(True for _ in rows):
        _, first = counts.images
        note = f"; first skipped image: {first}" if first else ""
        text = with_notes(f"{file} has no annotated image", skipped(labels, counts))
        raise UsageError(text + note, hint=IMAGES_HINT)
    absent, first = counts.absent
    if absent == len({image.id for image in labels.images}):
        raise UsageError(f"none of the images in {file} exist (first: {first})", hint=IMAGES_HINT)
    with screen.status("writing rows"):
        count = write_result_file(target, rows, rows.schema)
    report_import(options.output, count, labels, counts, screen)
    if counts.images[0]:
        raise typer.Exit(INCOMPLETE)


def report_import(
    output: str, written: int, labels: Labels, counts: LeftOut, screen: Screen
) -> None:
    """Report written rows and skipped images."""
    from pgcli.labels.labelled_image import skipped

    objects = [o for image in labels.images for o in image.objects or ()]
    notes = [(sum(o.mask is not None for o in objects), "of them with masks")]
    images = count(len({image.id for image in labels.images}), "image")
    made = f"{count(written, 'row')} of {images}, {count(len(objects), 'box')}"
    screen.info(with_notes(f"{output}: {made}", [*notes, *skipped(labels, counts)]))
    for note in counts.notes:
        screen.info(note)
    if counts.images[0]:
        screen.info(f"first skipped image: {counts.images[1]}", hint=IMAGES_HINT)
    absent, first = counts.absent
    if absent:
        text = f"{count(absent, 'image')} not found or not readable (first: {first})"
        screen.info(text, hint=IMAGES_HINT)


@command(
    "merge",
    "The result has one row for each image and prompt, in the order of the input. If several "
    "files contain the same row, pgcli keeps the first answer, or an error if there is none.",
    FileOptions,
    examples="$ pgcli merge captions.jsonl boxes.jsonl -o both.jsonl",
)
def merge(results: FileArgs, call: CliCall) -> None:
    from pgcli.output import result_target, write_result_file
    from pgcli.output.reader import read_results
    from pgcli.results.merge import MergedRows

    options, screen = call.build(FileOptions), Screen(quiet=call.quiet, bar_delay=BAR_DELAY)
    target = result_target(options.output, overwrite=options.overwrite)
    outputs = [Path(name) for name in results]
    with screen.progress("reading rows") as progress:
        rows = (row for path in outputs for row in read_results(path))
        schema = RowSchema.of(name for row in progress.track(rows) for name in row)
    merged = MergedRows(outputs)
    with screen.status("writing rows"):
        write_result_file(target, merged, schema)
    stats = merged.stats
    notes = [
        (stats.errors, "with errors"),
        (stats.repeated, "repeated rows skipped"),
        (stats.replaced, "errors replaced by answers"),
        (stats.conflicts, "with a different answer in a later file, which is ignored"),
    ]
    screen.info(f"{target.name}: {with_notes(count(stats.rows, 'row'), notes)}")
    if stats.errors:
        raise typer.Exit(INCOMPLETE)
