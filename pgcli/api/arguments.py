"""What calls from Python take: options as keywords, and sources, which may be images in memory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any, TypeAlias

from numpy.typing import ArrayLike
from PIL import Image

from pgcli.declare import build, parse_keywords, same
from pgcli.errors import UsageError
from pgcli.images import ImageError
from pgcli.images.decode import check_array, file_bytes, is_array
from pgcli.inputs import ReadOptions
from pgcli.inputs.options import ManifestRow
from pgcli.inputs.paths import ImageLocation, locate_below
from pgcli.inputs.rows import RowChecker, row_to_item
from pgcli.records import Item
from pgcli.run.options import AnsweringOptions, InputOptions, ModelOptions
from pgcli.run.questions import (
    COMMAND_OPTIONS,
    WITHOUT_ANSWERS,
    CommandOptions,
    SegmentOptions,
)
from pgcli.run.request import question_of, with_files
from pgcli.stores import Reader
from pgcli.tasks import AnyQuestion

PathName: TypeAlias = str | os.PathLike[str]


#: The options of `load`; of a call, these and the other forms of files do not apply.
LOADING = (
    *("model", "revision", "adapter", "device", "dtype", "quantize", "batch_size", "mask_decoder"),
    *("fast_decode", "allow_urls", "allow_private_hosts"),
)
NOT_OF_CALLS = ("mask_decoder", "dtype_out", "texts_file", "pool")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How a call uses the engine."""

    batch_size: int | None = same(ModelOptions, "batch_size")
    workers: int | None = same(InputOptions, "workers")


@dataclass(frozen=True, slots=True)
class Call:
    """A question, and how it is answered."""

    question: AnyQuestion
    command: CommandOptions
    answering: AnsweringOptions
    engine: EngineOptions
    progress: bool = False


def make_call(task: str, options: Mapping[str, object], *, of_texts: bool = False) -> Call:
    """The call of a task with these keywords; None leaves an option out. Raises UsageError."""
    keywords = {**options}
    progress = bool(keywords.pop("progress", False))
    records = [COMMAND_OPTIONS[task], EngineOptions]
    if task not in WITHOUT_ANSWERS:
        records.append(AnsweringOptions)
    values = with_files(parse_keywords(records, keywords, without=NOT_OF_CALLS))
    answering, command = build(AnsweringOptions, values), build(COMMAND_OPTIONS[task], values)
    question = question_of(command, answering, () if of_texts else ("-",))
    return Call(question, command, answering, build(EngineOptions, values), progress)


def without_none(options: Mapping[str, object]) -> dict[str, Any]:
    """The keywords that are not None; None leaves an option unset."""
    return {name: value for name, value in options.items() if value is not None}


def parse_loading(options: Mapping[str, object]) -> dict[str, Any]:
    """The values of keywords of `load`; None leaves an option out. Raises UsageError."""
    return parse_keywords((ModelOptions, InputOptions, SegmentOptions), options, only=LOADING)


InMemory = bytes | bytearray | memoryview | BytesIO | Image.Image
#: A path, glob, manifest or URL as on the command line; the bytes of an image file; an image of
#: Pillow; or an array or tensor of uint8, height x width x 3 (or 4, or 1 or none for grey). A dict
#: is a row of a manifest: one of these as `image`, and its `id`, `prompt`, `region` and others.
Source: TypeAlias = PathName | InMemory | ArrayLike | Mapping[str, Any]


def make_items(
    source: Source | Iterable[Source], question: AnyQuestion, reader: Reader | None
) -> tuple[Iterable[Item], int | None]:
    """The items of one source or several, and their number if it is known.

    Paths alone are opened together, as on the command line; in a list with images of other kinds
    each is an image file. An empty list yields no items. Raises UsageError before any image is
    read. An iterator, such as a generator, has no length: its images are taken one by one as they
    are asked for, each path of it is an image file, and a missing one has a fault.
    """
    from pgcli.run.checks import question_options  # imports pyarrow

    check_source(source)
    options = replace(question_options(question, ReadOptions.prompt_column), url_reader=reader)
    if not is_single(source) and not hasattr(source, "__len__"):
        stream: Iterable[Any] = source  # type: ignore[assignment]
        return row_items(checked(map(as_row, stream), options), options), None
    sources = source_list(source)
    paths = [os.fspath(path) for path in sources if isinstance(path, str | os.PathLike)]
    has_rows = any(isinstance(row, Mapping) for row in sources)
    if has_rows or len(paths) < len(sources) or not sources:
        for path in () if has_rows else paths:
            check_file(path)
        rows = list(checked(map(as_row, sources), options))
        return row_items(rows, options), len(rows)
    from pgcli.inputs import Inventory  # imports pyarrow

    # a list, such as a column of a table, may name an image for several of its rows
    repeats = len(set(paths)) < len(paths)
    inventory = Inventory.scan(paths, replace(options, repeats_ids=repeats))
    return inventory, inventory.total


def is_single(source: Any) -> bool:
    """Whether this is a single source. An array of two or three dimensions is an image;
    others, such as a batch of images or a column of paths, are sequences.
    """
    is_image = is_array(source) and len(source.shape) in (2, 3)
    return is_image or isinstance(source, str | os.PathLike | InMemory | Mapping)


def source_list(source: Any) -> list[Any]:
    """The sources as a list. Raises UsageError."""
    check_source(source)
    return [source] if is_single(source) else list(source)


def check_source(source: Any) -> None:
    """Raise UsageError for a table, an open file, or a value that is no image and has none."""
    if hasattr(type(source), "columns"):
        raise UsageError(
            f"{type(source).__name__} is a table, not a list of images",
            hint='pass its rows as dicts: .to_dict("records") of pandas, .to_dicts() of polars, '
            ".to_pylist() of pyarrow",
        )
    is_iterable = hasattr(source, "__iter__") or hasattr(source, "__getitem__")
    is_scalar = is_array(source) and len(source.shape) == 0
    if not is_single(source) and (is_scalar or hasattr(source, "read") or not is_iterable):
        check_image(source)


def as_row(source: Any) -> Mapping[str, Any]:
    """The source as a row of a manifest."""
    return source if isinstance(source, Mapping) else {"image": source}


def check_file(path: str) -> None:
    """Raise UsageError for a path that is not a file."""
    if not Path(path).is_file():
        raise UsageError(
            f"{path or 'an empty name'} is not a file",
            hint="a list with images in memory may name image files only, not folders",
        )


def check_image(source: object) -> None:
    """Raise UsageError for a value that cannot be an image."""
    if is_array(source):
        check_array(source)
    elif not isinstance(source, InMemory):
        raise UsageError(
            f"{'None' if source is None else type(source).__name__} is not an image",
            hint="pass a file's path, or its bytes with .read()"
            if hasattr(source, "read")
            else "pass paths, bytes, BytesIO, images of Pillow, uint8 arrays and tensors, or dicts "
            "with one of these as 'image'",
        )


def check_row_image(number: int, image: object) -> None:
    """Raise UsageError for an image of a row that is no path, dict or image in memory."""
    if not isinstance(image, str | os.PathLike | Mapping):
        try:
            check_image(image)
        except UsageError as problem:
            raise UsageError(f"row {number}: {problem}", hint=problem.hint) from problem


def checked(rows: Iterable[Mapping[str, Any]], options: ReadOptions) -> Iterator[Mapping[str, Any]]:
    """The rows. Raises UsageError for an invalid one, such as one that lacks a column."""
    checker = RowChecker(options)
    for number, row in enumerate(rows):
        if named := "image" in row:
            check_row_image(number, row["image"])
        checker.check(ManifestRow(f"row {number}", {**row, "image": b""} if named else row))
        yield row


def row_items(rows: Iterable[Mapping[str, Any]], options: ReadOptions) -> Iterator[Item]:
    """An item for each row, encoded when it is taken."""

    def locate(path: str) -> ImageLocation:
        return locate_below("", path, None, allow_urls=options.url_reader is not None)

    for index, row in enumerate(rows):
        image, fault = row["image"], None
        if isinstance(image, os.PathLike):
            image = os.fspath(image)
        elif not isinstance(image, str | Mapping):
            try:
                image = file_bytes(image)
            except ImageError as problem:
                image, fault = b"", problem.fault
        named = ManifestRow(f"row {index}", {**row, "image": image}, fault)
        yield row_to_item(named, index, options, locate=locate, manifest=str(index))
