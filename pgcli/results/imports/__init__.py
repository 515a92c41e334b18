"""The formats of annotations that `pgcli import` reads, by name."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgcli.results.imports.truth import ReadAnnotations

#: The names that `--from` takes, each with its module here and its function.
FORMATS: Mapping[str, str] = {
    "coco": "coco.read",
    "yolo": "yolo.read",
    "labelstudio": "labelstudio.read",
    "parquet": "tables.read",
    "csv": "tables.read",
    "webdataset": "tables.read",
}


def reader_named(name: str) -> ReadAnnotations:
    """The function that reads the format of this name, one of FORMATS."""
    module, _, attribute = FORMATS[name].partition(".")
    reader: ReadAnnotations = getattr(import_module(f"{__name__}.{module}"), attribute)
    return reader
