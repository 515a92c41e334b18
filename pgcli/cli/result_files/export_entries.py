"""Rows of a result file gathered by picture, each with a name and a way to its bytes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import groupby
from pathlib import Path, PurePosixPath

from pgcli.cli.job.draw.file_names import FileNames, folder_name
from pgcli.cli.job.draw.originals import read_original
from pgcli.cli.result_files.image_locator import ImageLocator, ImageSearch, image_key, wanted_image
from pgcli.cli.result_files.validate_rows import RowStats, valid_rows
from pgcli.errors import UsageError
from pgcli.images import ImageError, ImageLimits, Size, read_file_header, read_header
from pgcli.images.decoder_warnings import silence_decoders
from pgcli.printable import encodable
from pgcli.records import Fault, Item
from pgcli.remote import UrlReader
from pgcli.sources.endings import IMAGE_ENDINGS
from pgcli.sources.paths import parse_path, resolves_inside, url_scheme
from pgcli.views.exports.entry import ExportEntry, ExportFormat, ExportSettings, Row, keep_name
from pgcli.views.formats import SUFFIXES

IMAGE_CHANGED = Fault("missing", "The picture changed since it was answered.")


class ExportEntries:
    """The pictures of a result file's rows for one export, found as they are asked for."""

    def __init__(
        self, results: Path, format: ExportFormat, given: ExportSettings, search: ImageSearch
    ):
        self._format, self._given, self._search = format, given, search
        self._places = ImageLocator([results], search)
        self._endings = frozenset[str]() if format.unique_stems else IMAGE_ENDINGS
        self._names = FileNames(self._endings, self._tidied)

    def spare(self, target: Path) -> None:
        """Raise UsageError where what the run read would be replaced by the target."""
        root = os.path.realpath(target)
        if read := next(
            (path for path in self._places.read() if resolves_inside(path, root)), None
        ):
            raise UsageError(
                f"{read} was read by the run, and {target} is written", hint="name another with -o"
            )

    def entries(
        self, rows: Iterable[Row], prompt: str | None, root: str | None
    ) -> Iterator[ExportEntry]:
        """The pictures of rows that were surveyed, one by one, each with a name of its own.

        Raises UsageError for one that does not lie in the folder `root`.
        """
        silence_decoders()
        good = valid_rows(rows, prompt, RowStats())
        for number, (_, same) in enumerate(groupby(good, key=image_key), start=1):
            group = tuple(same)
            found = self._found(number, group[0])
            names = self._named(number, group[0], found)
            called = group[0]["image"] if root is None else self._within(root, group[0])
            is_address = url_scheme(called) is not None
            yield ExportEntry(number, called, *names, found.path, found.read, group, is_address)

    def _found(self, number: int, row: Row) -> RowImage:
        """The picture, as far as the format asks for it: its bytes, or the file that it is."""
        format, one = self._format, wanted_image(row)
        if format.reads_images and self._given.images != "none":
            item = self._places.item(number, one)
        else:
            is_asked = format.is_merged and not url_scheme(one.image)
            path = self._places.file(one) if is_asked else None
            item = Item(number, one.id, one.image, path)
        # a text is put beside a picture whatever became of it
        size = None if format.is_merged else (row["width"], row["height"])
        return RowImage(item, size, self._search.url_reader)

    def _tidied(self, part: str, is_folder: bool) -> str:
        """A folder's or a file's name as it is to be within the export."""
        pictures = frozenset[str]() if self._format.is_merged else IMAGE_ENDINGS
        part = self._format.sanitize_name(part, is_folder)
        return folder_name(part, pictures | self._format.suffixes, is_folder=is_folder)

    def _named(self, number: int, row: Row, found: RowImage) -> tuple[str, str, str]:
        """What the picture is called within the export, where no other has the name: whole, without
        its ending, and as it would be if nothing were in the way.
        """
        format, id_ = self._format, row["id"]
        endings = (PurePosixPath(parse_path(name)).suffix for name in (id_, row["image"]))
        ending = next((one for one in endings if one.lower() in IMAGE_ENDINGS), "")
        # a text lies beside a picture whatever its name's bytes; what an index names is UTF-8
        asked = parse_path(id_) if format.is_merged else encodable(parse_path(id_))
        asked = asked.removesuffix(ending) if format.unique_stems else asked
        own = FileNames(self._endings, keep_name).claim(asked, number)
        name = self._names.claim(asked, number)
        if not ending and format.reads_images:
            ending = found.ending
        whole, wish = (
            name.ended(format.suffix_aliases.get(ending.lower(), ending)),
            own.ended(ending),
        )
        if whole != wish and not format.is_merged and format.reads_images:
            self._given.counts.add_renamed(wish, whole)
        return whole, name.stem, wish

    def _within(self, root: str, row: Row) -> str:
        """What the picture is called from the folder on. Raises UsageError where it is not."""
        image, name = row["image"], ".."
        if image and not url_scheme(image):
            name = os.path.relpath(self._places.named(wanted_image(row)), root)
        if name == ".." or name.startswith("../"):
            raise UsageError(
                f"{image} does not lie in {root}",
                hint="--root names the folder that holds all pictures; leave it out for whole "
                "paths",
            )
        return encodable(name)


class RowImage:
    """A row's picture: a file, bytes, or something at an address.

    `size` is the width and height that it is to have; None where any will do.
    """

    def __init__(self, item: Item, size: tuple[int, int] | None, url_reader: UrlReader | None):
        self._item, self._size, self._url_reader = item, size, url_reader

    @cached_property
    def path(self) -> str | None:
        """The file, if it is one and holds the picture still; of any size, if it is called one.

        A row from elsewhere may name any file of the user's.
        """
        path = self._item.path
        if path is None or url_scheme(path) or not os.path.isfile(path):  # noqa: PTH113
            return None
        is_named = self._size is None and Path(path).suffix.lower() in IMAGE_ENDINGS
        return path if is_named or self.ending else None

    @cached_property
    def ending(self) -> str:
        """What files of the picture's format end in; nothing where it cannot be read."""
        path = self._item.path
        try:
            if path is None or url_scheme(path):
                return SUFFIXES[self._opened[1]][0]
            return SUFFIXES[self._same(*read_file_header(path, ImageLimits()))][0]
        except ImageError:
            return ""

    def read(self) -> bytes:
        """The picture's bytes. Raises `ImageError` where it is none, or another than it was."""
        return self._opened[0]

    @cached_property
    def _opened(self) -> tuple[bytes, str]:
        """The bytes, and their format."""
        data = read_original(self._item, ImageLimits(), self._url_reader)
        return data, self._same(*read_header(data))

    def _same(self, format: str, size: Size) -> str:
        """The format, if the size is the row's, which late EXIF may turn. Raises `ImageError`."""
        if self._size is not None and sorted(size) != sorted(self._size):
            raise ImageError(IMAGE_CHANGED)
        return format
