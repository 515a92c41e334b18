"""Reads PDF files: each page is a row, an image that decoding processes render."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from importlib.util import find_spec

from pgcli.errors import ManifestError, UsageError
from pgcli.images.pdf import PdfError, count_pages
from pgcli.inputs.options import START, ManifestRow, Mark
from pgcli.inputs.tables import Table
from pgcli.records import Fault


class PdfTable(Table):
    """A PDF as a table of its pages, `FILE.pdf/1` and so on. An unreadable one is a failed row."""

    has_names = True

    def read(
        self, columns: frozenset[str], mark: Mark = START, *, images: bool = True
    ) -> Iterator[tuple[Mark, ManifestRow]]:
        """A row for each page; its span is its number and 0.

        Raises UsageError without pypdfium2 and for a URL, ManifestError for a missing file.
        """
        pages, fault = self._pages
        for number in range(mark.number + 1, pages + 1):
            values = {self.image_column: {"path": f"{self.name}/{number}", "bytes": None}}
            span = None if fault else (number, 0)
            row = ManifestRow(f"{self.name}, page {number}", values, fault, span)
            yield Mark(number - 1, number - 1), row

    @cached_property
    def _pages(self) -> tuple[int, Fault | None]:
        """The number of pages, or one and the fault of an unreadable file."""
        if find_spec("pypdfium2") is None:
            raise UsageError(
                f"{self.name} is a PDF, which needs pypdfium2",
                hint="pip install 'paligemma-cli[pdf]'",
            )
        if not self._is_local:
            raise UsageError(
                f"{self.name} is a PDF at an address, and pgcli reads only those on this machine",
                hint="download it first",
            )
        if self.is_gone:
            raise ManifestError(f"{self.name} does not exist", hint="check the spelling")
        try:
            return count_pages(self.file.local_path), None
        except PdfError as problem:
            return 1, problem.fault
