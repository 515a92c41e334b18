"""The export formats by name, each loaded when it is used."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgcli.results.exports.entry import ExportFormat

#: The names that `--to` takes, each with its module here and its ExportFormat.
FORMATS: Mapping[str, str] = {
    "coco": "coco.COCO",
    "yolo": "yolo.YOLO",
    "labelstudio": "labelstudio.LABEL_STUDIO",
    "imagefolder": "imagefolder.IMAGEFOLDER",
    "txt": "texts.TXT",
    "caption": "texts.CAPTION",
    "csv": "tables.CSV",
    "parquet": "tables.TABLE",
    "webdataset": "webdataset.WEBDATASET",
    "fiftyone": "coco.FIFTYONE",
}


def format_named(name: str) -> ExportFormat:
    """The format of this name, one of FORMATS."""
    module, _, attribute = FORMATS[name].partition(".")
    format: ExportFormat = getattr(import_module(f"{__name__}.{module}"), attribute)
    return format
