"""Finds the images that an annotation file names, inside their folder."""

from __future__ import annotations

import os
import re
from pathlib import Path

from pgcli.images.errors import ImageError
from pgcli.images.formats import whole_header
from pgcli.inputs.paths import locate_below
from pgcli.labels.labelled_image import ImportSettings
from pgcli.records import Fault, Item
from pgcli.stores.urls import url_scheme

OUTSIDE_ROOT = Fault("path_not_allowed", "It is outside the folder of the images.")
UNKNOWN_SIZE = Fault("missing", "The file does not state its size, and the image is not there.")


def locate(name: str, settings: ImportSettings, folder: Path | None = None) -> str | None:
    """The real path of an image, or its URL; None, counted, if it is outside the root.

    The name is relative to `folder`, by default the root; images may be in either.
    """
    if url_scheme(name):
        return name
    roots = [os.path.realpath(path) for path in (settings.root, folder) if path is not None]
    for root in roots:
        location = locate_below(str(folder or settings.root), name, root)
        if location.fault is None and location.path is not None:
            return os.path.realpath(location.path)
    settings.counts.missing.add(name, OUTSIDE_ROOT)
    return None


def local_name(name: str, settings: ImportSettings) -> str:
    """The name without a leading `./`, and with slashes if it has Windows' backslashes."""
    name = re.sub(r"^(\./+)+", "", name)
    if "\\" not in name or os.path.lexists(os.path.join(settings.root, name)):  # noqa: PTH118
        return name
    return name.replace("\\", "/")


def upright_size(name: str, path: str, settings: ImportSettings) -> tuple[int, int] | None:
    """The width and height of an image file; None, counted, for an unreadable one."""
    if url_scheme(path):
        settings.counts.missing.add(name, UNKNOWN_SIZE)
        return None
    try:
        size = whole_header(Item(0, name, name, path)).size
    except ImageError as problem:
        settings.counts.missing.add(name, problem.fault)
        return None
    return size.width, size.height
