"""What answers can be exported to: a format's name -> the file here that writes it."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgcli.views.exports.entry import Format

#: The names that `--to` takes, each with its file and its Format there, read when it is asked for.
FORMATS: Mapping[str, str] = {
    "coco": "coco.COCO",
    "yolo": "yolo.YOLO",
    "labelstudio": "labelstudio.LABEL_STUDIO",
    "imagefolder": "imagefolder.IMAGEFOLDER",
    "txt": "texts.TXT",
    "caption": "texts.CAPTION",
    "csv": "csv.CSV",
    "webdataset": "webdataset.WEBDATASET",
    "fiftyone": "fiftyone.FIFTYONE",
}


def format_named(name: str) -> Format:
    """The format of this name, one of FORMATS."""
    module, _, attribute = FORMATS[name].partition(".")
    found: Format = getattr(import_module(f"{__name__}.{module}"), attribute)
    return found
