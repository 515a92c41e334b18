"""What the Python interface takes as images: paths, bytes, and images in memory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, TypeAlias

from PIL import Image

from pgcli import tasks
from pgcli.errors import UsageError
from pgcli.images import ImageError
from pgcli.images.in_memory import ArrayLike, check_array, encode_image, image_of, is_array
from pgcli.records import Item
from pgcli.remote import UrlReader
from pgcli.sources import ReadOptions, open_sources
from pgcli.tasks import Question

InMemory = bytes | bytearray | memoryview | BytesIO | Image.Image
#: A path, glob, manifest or URL as on the command line; the bytes of an image file; an image of
#: Pillow; or an array or tensor of uint8, height x width x 3 (or 4, or 1 or none for grey).
Source: TypeAlias = str | os.PathLike[str] | InMemory | ArrayLike


def make_items(
    source: Source | Iterable[Source], question: Question, url_reader: UrlReader | None
) -> tuple[Iterable[Item], int | None]:
    """The items of one source or several, and their number where it is known.

    Paths alone are opened together, as on the command line; in a list with images of other kinds
    each is an image file. An empty list yields no items. Raises UsageError before any image is
    read.
    """
    sources = as_list(source)
    paths = [os.fspath(one) for one in sources if isinstance(one, str | os.PathLike)]
    if len(paths) < len(sources) or not sources:
        for one in sources:
            check_source(one)
        return items_of(sources), len(sources)
    options = ReadOptions(
        fields=tasks.columns(question),
        requires_prompts=question.templates is None,
        refuses_prompts=question.refuses_prompts,
        choices_column=question.choices_column,
        refuses_regions=question.region is not None,
        url_reader=url_reader,
    )
    opened = open_sources(paths, options)
    return opened, opened.total


def as_list(source: Any) -> list[Any]:
    """The sources as a list. An array of two or three dimensions is an image; others, such as a
    batch of images or a column of paths, are sequences.
    """
    is_image = is_array(source) and len(source.shape) in (2, 3)
    return (
        [source] if is_image or isinstance(source, str | os.PathLike | InMemory) else list(source)
    )


def check_source(source: object) -> None:
    """Raise UsageError for what cannot be an image."""
    if isinstance(source, str | os.PathLike):
        if not Path(source).is_file():
            raise UsageError(
                f"{os.fspath(source)} is not a file",
                hint="a list with images in memory may name image files only, not folders",
            )
    elif is_array(source):
        check_array(source)  # type: ignore[arg-type]
    elif not isinstance(source, InMemory):
        raise UsageError(
            f"{type(source).__name__} is not an image",
            hint="pass paths, bytes, BytesIO, images of Pillow, or uint8 arrays and tensors",
        )


def items_of(sources: Sequence[Any]) -> Iterator[Item]:
    """An item for each source, encoded when it is taken."""
    for index, source in enumerate(sources):
        if isinstance(source, str | os.PathLike):
            path = os.fspath(source)
            yield Item(index, path, path, path=path)
            continue
        name = str(index)
        try:
            yield Item(index, name, name, data=image_bytes(source))
        except ImageError as problem:
            yield Item(index, name, name, fault=problem.fault)


def image_bytes(source: Any) -> bytes:
    """The bytes of an image file with this content. Raises ImageError."""
    if isinstance(source, BytesIO):
        return source.getvalue()  # also where it was just written, and its position is the end
    if isinstance(source, Image.Image) or is_array(source):
        return encode_image(source if isinstance(source, Image.Image) else image_of(source))
    return bytes(source)
