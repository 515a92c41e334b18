"""The images of an export, each with its rows, its bytes and a file name within the export."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from pathlib import Path, PurePosixPath

from pgcli.errors import UsageError
from pgcli.images import ImageError, ImageHeader, ImageLimits
from pgcli.images.decode import silence_decoders
from pgcli.images.files import read_original
from pgcli.images.formats import whole_header
from pgcli.inputs.readers import IMAGE_ENDINGS
from pgcli.output.reader import Row
from pgcli.printable import encodable
from pgcli.records import Fault, Item
from pgcli.results.drawings.formats import SUFFIXES
from pgcli.results.exports.entry import Export, ExportEntry, ExportFormat
from pgcli.results.exports.rows import FileRow, RowStats, valid_rows
from pgcli.results.file_names import FileNames, folder_name
from pgcli.results.images import ImageLocator, ImageRef
from pgcli.stores import Reader
from pgcli.stores.files import parse_path
from pgcli.stores.target import Target
from pgcli.stores.urls import url_scheme


class ExportEntries:
    """The images of the rows of result files for one export, located one by one."""

    def __init__(
        self,
        outputs: Sequence[Path],
        format: ExportFormat,
        export: Export,
        locator: ImageLocator,
        target: Target | None,
    ):
        self._outputs, self._format, self._export = outputs, format, export
        self._locator = locator
        self._target = None if format.is_merged else target
        self._names = FileNames(
            frozenset() if format.unique_stems else IMAGE_ENDINGS, self._sanitize
        )

    def entries(self, rows: Iterable[FileRow]) -> Iterator[ExportEntry]:
        """One entry for each image, with a unique name.

        Raises UsageError for an image outside the folder that paths are relative to, and for a
        source of the run or an image in the target, which is replaced.
        """
        if (target := self._target) is not None:
            for source in self._locator.source_paths(self._outputs):
                target.refuse_inside(source)
        silence_decoders()
        options = self._export.options
        folder = options.images if self._format.writes_paths else None
        valid = valid_rows(rows, options.only_prompt, RowStats())
        for number, (_, same) in enumerate(groupby(valid, key=attrgetter("image")), start=1):
            file_rows = tuple(same)
            group = tuple(file_row.row for file_row in file_rows)
            ref = ImageRef.of(group[0], self._outputs[file_rows[0].file])
            image = self._locate(number, group, ref)
            if not self._format.reads_images and (fault := image.size_fault):
                self._export.counts.missing.add(ref.image or ref.id, fault)
                continue
            names = self._claim_name(number, group[0], image)
            address = ref.image if folder is None else self._relative_path(folder, ref)
            is_url = url_scheme(address) is not None
            if target is not None and self._format.is_folder and image.path is not None:
                target.refuse_inside(image.path)
            yield ExportEntry(number, address, group, *names, image.path, image.read, is_url)

    def _locate(self, number: int, rows: Sequence[Row], ref: ImageRef) -> RowImage:
        """The image with its bytes, or only its file if the format needs no more."""
        format = self._format
        if format.reads_images and self._export.options.store_images != "none":
            item = self._locator.item(number, ref)
        else:
            draws = format.writes_paths or format.reads_images
            needs_file = format.is_merged or (draws and any(row["boxes"] for row in rows))
            needs_file = needs_file and not url_scheme(ref.image)
            path = self._locator.find_file(ref) if needs_file else None
            item = Item(number, ref.id, ref.image, path)
        # a text file is written next to the image even if the image has changed
        size = None if format.is_merged else (rows[0]["width"], rows[0]["height"])
        return RowImage(item, size, self._locator.url_reader)

    def _sanitize(self, part: str, is_folder: bool) -> str:
        """An allowed name for a folder or file."""
        image_endings = frozenset[str]() if self._format.is_merged else IMAGE_ENDINGS
        if self._format.sanitize_name is not None:
            part = self._format.sanitize_name(part, is_folder)
        return folder_name(part, image_endings | self._format.suffixes, is_folder=is_folder)

    def _claim_name(self, number: int, row: Row, image: RowImage) -> tuple[str, str]:
        """The unique name of the image in the export, or of its text, and the name's stem."""
        format, id_ = self._format, row["id"]
        suffixes = (PurePosixPath(parse_path(name)).suffix for name in (id_, row["image"]))
        ending = next((suffix for suffix in suffixes if suffix.lower() in IMAGE_ENDINGS), "")
        default = ending or (image.ending if format.reads_images else "")
        if not format.is_folder:
            return f"{number:09}{default.lower()}", f"{number:09}"
        # a text file has the bytes of the image's name; names in an index are UTF-8
        wish = parse_path(id_) if format.is_merged else encodable(parse_path(id_))
        wish = wish.removesuffix(ending) if format.unique_stems else wish
        if format.is_merged:  # texts of several images may have one stem: `Sidecars` names them
            self._names = FileNames(frozenset(), self._sanitize)
            (default,) = format.suffixes
            default = ending if ending and id_.endswith(ending) else default
        claimed = self._names.claim(wish, number)
        name = claimed.with_ending(default)
        if name != (own_name := claimed.wish + ("" if claimed.ending else default)):
            self._export.counts.add_renamed(own_name, name)
        return name, claimed.stem

    def _relative_path(self, folder: str, ref: ImageRef) -> str:
        """The path of the image relative to the folder. Raises UsageError for an image outside."""
        image, path = ref.image, ".."
        if image and not url_scheme(image):
            file = self._locator.find_file(ref) or self._locator.path_in_run(ref)
            path = os.path.relpath(file, folder)
        if path == ".." or path.startswith("../"):
            raise UsageError(
                f"{image} is not in {folder}",
                hint="--images names a folder that contains all images; omit it for absolute paths",
            )
        return encodable(path)


CHANGED = "changed"  # the code of an image that has another size


class RowImage:
    """An image: a file, bytes, or a URL. `size` is the expected one, None for any."""

    def __init__(
        self,
        item: Item,
        size: tuple[int, int] | None,
        url_reader: Reader | None,
    ):
        self._item, self._size, self._url_reader = item, size, url_reader

    @cached_property
    def path(self) -> str | None:
        """The image file, if it exists and has the rows' size, or an image ending for any size.

        It is checked because a row of another program may name any file of the user.
        """
        path = self._item.path
        if path is None or self._item.span is not None or url_scheme(path) is not None:
            return None
        if not os.path.isfile(path):  # noqa: PTH113 - Path raises for long names
            return None
        has_ending = self._size is None and Path(path).suffix.lower() in IMAGE_ENDINGS
        return path if has_ending or self.ending else None

    @cached_property
    def ending(self) -> str:
        """The file ending of the image's format; empty if it cannot be read."""
        header = self._header
        return "" if isinstance(header, Fault) else SUFFIXES[header.format]

    def read(self) -> bytes:
        """The bytes of the image. Raises `ImageError` if it cannot be read or has changed."""
        if isinstance(self._header, Fault):
            raise ImageError(self._header)
        return read_original(self._item, ImageLimits(), self._url_reader)

    @property
    def size_fault(self) -> Fault | None:
        """The fault of an image of another size, or None."""
        header = self._header
        return header if isinstance(header, Fault) and header.code == CHANGED else None

    @cached_property
    def _header(self) -> ImageHeader | Fault:
        """The header of the image, or the fault of an unreadable image or of another size."""
        try:
            header = whole_header(self._item, self._url_reader)
        except ImageError as problem:
            return problem.fault
        if self._size not in (None, header.size):
            text = " x ".join(map(str, self._size or ()))
            now = f"{header.size.width} x {header.size.height}"
            message = f"The image changed since it was answered: it has {now} pixels, not {text}."
            return Fault(CHANGED, message)
        return header
