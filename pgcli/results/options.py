"""The options of pages, exports and imports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from pgcli import registry
from pgcli.declare import REQUIRED, opt, same
from pgcli.errors import UsageError
from pgcli.run.options import InputOptions
from pgcli.run.questions import lines_of_file

_target = partial(opt, panel="Where to", own=True)
_images = partial(opt, panel="Images", own=True)
_labels = partial(opt, panel="Boxes", own=True)
_texts = partial(opt, panel="Text files", own=True)


def format_option(group: str, panel: str) -> str:
    """A required option that names a format in a group of the registry."""
    name: str = opt(
        f"Format: {', '.join(registry.BUILT_IN[group])}.",
        panel=panel,
        own=True,
        default=REQUIRED,
        metavar="FORMAT",
        choices=lambda: registry.names(group),
        parse=partial(registry.parse_name, group),
    )
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageOptions:
    """The folder of the images."""

    images: str | None = opt(
        "Look for images in this folder only.", panel="Which images", own=True, metavar="DIR"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelOptions:
    """The labels of the classes, in the order of their numbers."""

    label: tuple[str, ...] = _labels(
        "Class label; repeat it, in the order of the class numbers.", repeat=True
    )
    label_file: str | None = _labels(
        "Text file with one label per line, added to --label.", metavar="FILE"
    )


def read_labels(names: Sequence[str], file: str | None) -> list[str]:
    """The named labels and then the labels in a text file.

    Raises UsageError for an invalid or duplicate label.
    """
    from pgcli.labels.json_values import label

    names = [*names, *lines_of_file(file, noun="label")]
    try:
        labels = [label(name, repr(name)) for name in names]
    except ValueError as problem:
        raise UsageError(
            f"--label: {problem}", hint="write --label cat --label dog, or --label-file FILE"
        ) from problem
    if twice := next((name for name in labels if labels.count(name) > 1), None):
        raise UsageError(f"the label {twice!r} occurs twice", hint="remove one of the two")
    return labels


@dataclass(frozen=True, slots=True, kw_only=True)
class GalleryOptions:
    """Where a page goes, and the size of its images; hints use `option`, which names the page."""

    option: str = "-o"
    output: str | None = _target(
        "Page to write.", metavar="FILE", short=("-o",), default_text="RESULTS.html"
    )
    overwrite: bool = _target("Replace the file even if it is not a pgcli page.", default=False)
    size: int | None = _target(
        "Longest side of the images, in pixels.",
        min=16,
        max=4096,
        default_text="2048 to 320, by their number",
    )
    limit: int | None = same(InputOptions, "limit", own=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """The format, the target and the rows of an export."""

    to: str = format_option("exports", "Where to")
    output: str | None = _target(
        "File or folder to write; txt and caption default to the images' folders.",
        metavar="PATH",
        short=("-o",),
    )
    overwrite: bool = _target("Replace an earlier export.", default=False)
    only_prompt: str | None = opt(
        "Export only the rows with this prompt.", panel="Rows", own=True, metavar="TEXT"
    )
    label: tuple[str, ...] = same(LabelOptions, "label")
    label_file: str | None = same(LabelOptions, "label_file")
    store_images: Literal["link", "copy", "none"] = _images(
        "yolo, imagefolder, fiftyone: link or copy the images into the folder, or write none; an "
        "image that is not a file is copied.",
        default="link",
    )
    images: str | None = same(ImageOptions, "images")
    image_prefix: str | None = _images(
        "labelstudio: URL to put before the names of the images.", metavar="URL"
    )
    prepend: str = _texts(
        "txt, caption: text to put at the start of each file.", default="", metavar="TEXT"
    )
    append: str = _texts(
        "txt, caption: text to put at the end of each file.", default="", metavar="TEXT"
    )
