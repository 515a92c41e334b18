"""The options of an export."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from pgcli import registry
from pgcli.declare import REQUIRED, opt

_output = partial(opt, panel="Where to", own=True)
_images = partial(opt, panel="Images", own=True)
_texts = partial(opt, panel="Text files", own=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """What is exported of which rows, and where to."""

    to: str = _output(
        ", ".join(registry.BUILT_IN["exports"]) + ".",
        default=REQUIRED,
        metavar="FORMAT",
        choices=lambda: registry.names("exports"),
        parse=partial(registry.parse_name, "exports"),
    )
    output: str | None = _output(
        "The file or folder to write; txt and caption default to the images' folders.",
        metavar="PATH",
        short=("-o",),
    )
    overwrite: bool = _output("Replace an earlier export.", default=False)
    prompt: str | None = opt(
        "Only the rows of this prompt.", panel="Rows", own=True, metavar="TEXT"
    )
    labels: str | None = opt(
        "coco, yolo, labelstudio, imagefolder, fiftyone: the labels in order, or a file with one "
        "on each line.",
        panel="Boxes",
        own=True,
        metavar="A,B|FILE",
        default_text="all, sorted",
    )
    store_images: Literal["link", "copy", "none"] = _images(
        "yolo, imagefolder, fiftyone: link or copy the images into the folder, or none; an image "
        "that is not a file is copied.",
        default="link",
    )
    root: str | None = _images(
        "Look for the images in this folder only; coco, labelstudio: write paths relative to it.",
        metavar="DIR",
    )
    image_prefix: str | None = _images(
        "labelstudio: the address of the images, without their names.", metavar="URL"
    )
    prepend: str = _texts("txt, caption: start each text with this.", default="", metavar="TEXT")
    append: str = _texts("txt, caption: end each text with this.", default="", metavar="TEXT")
