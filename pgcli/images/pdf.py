"""Counts and renders the pages of PDF files.

PDFium is native code that parses foreign files, so it runs only in processes with limits of memory
and time: in the decoding processes, and for all other callers in one of its own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from io import BytesIO
from typing import Any, BinaryIO, NamedTuple

from pgcli.images import child_process
from pgcli.images.child_process import Connection, ProcessFailed, ServedProcess
from pgcli.records import Fault
from pgcli.stores.files import file_fault, open_regular

ENDING = ".pdf"
#: The longer side of a rendered page, in pixels: text of 6 points stays legible.
SIDE = 1500
MAX_PAGES = 50_000
MAX_PNG_BYTES = 32 * 2**20  # more than the pixels of a page
PROCESSOR_SECONDS = 30
TIME_LIMIT_SECONDS = 300
PASSWORD_ERROR = 4  # FPDF_ERR_PASSWORD

ENCRYPTED = Fault("unsupported_format", "The PDF needs a password.")
DAMAGED = Fault("decode_failed", "The PDF is damaged, or it is no PDF.")
NO_PAGES = Fault("decode_failed", "The PDF has no pages.")
DAMAGED_PAGE = Fault("decode_failed", "The page of the PDF is damaged.")
TOO_MANY = Fault("too_large", f"The PDF has more than {MAX_PAGES:,} pages.")
CRASHED = Fault("worker_crashed", "The process that reads the PDF crashed twice.")
LATE = Fault("timeout", f"Reading the PDF takes longer than {PROCESSOR_SECONDS} seconds.")
NO_MEMORY = Fault("decode_failed", "There is not enough memory to render the page.")


class PdfError(Exception):
    """A PDF, or a page of it, that cannot be read, with its fault."""

    def __init__(self, fault: Fault):
        super().__init__(fault.message)
        self.fault = fault


def is_pdf(path: str | None) -> bool:
    """Whether a path is that of a PDF."""
    return path is not None and path.lower().endswith(ENDING)


def count_pages(path: str) -> int:
    """The number of pages of a file. Raises PdfError."""
    header, _ = ask_process({"path": path, "root": None, "page": None})
    return int(header["pages"])


def page_png(path: str, page: int, root: str | None = None) -> bytes:
    """A page as a PNG file, with SIDE pixels on its longer side; pages are counted from 1.

    With a `root` (a real path), the file must be in it. Raises PdfError.
    """
    if child_process.is_limited():
        return rendered(path, page, root)
    _, data = ask_process({"path": path, "root": root, "page": page})
    return bytes(data)


PROCESS = ServedProcess(__name__, "PDF files", MAX_PNG_BYTES)


def ask_process(request: Mapping[str, Any]) -> tuple[dict[str, Any], memoryview]:
    """The reply of the process. Raises PdfError."""
    try:
        # the process keeps the folder in which it started
        path = os.path.abspath(request["path"])  # noqa: PTH100 - Path raises for a NUL
        more = {"path": path, "seconds": PROCESSOR_SECONDS}
        header, data = PROCESS.ask({**request, **more}, TIME_LIMIT_SECONDS)
    except ProcessFailed as problem:
        raise PdfError(LATE if problem.is_late else CRASHED) from problem
    if "fault" in header:
        raise PdfError(Fault(*map(str, header["fault"])))
    return header, data


# --- in a process with limits


def serve(connection: Connection, settings: Mapping[str, Any]) -> None:
    """Answer requests until the connection ends."""
    child_process.start_serving(connection)
    while True:
        request, _ = connection.receive(0)
        child_process.limit_processor_time(request["seconds"])
        header, data = dict[str, Any](), b""
        try:
            if request["page"] is None:
                header = {"pages": len(open_document(request["path"], request["root"]))}
            else:
                data = rendered(request["path"], request["page"], request["root"])
        except PdfError as problem:
            header = {"fault": [problem.fault.code, problem.fault.message]}
        child_process.limit_processor_time(0)
        connection.send(header, data)


class OpenPdf(NamedTuple):
    """The document that this process read last, with what identifies its file."""

    key: tuple[Any, ...]
    file: BinaryIO
    document: Any


_last: OpenPdf | None = None


def open_document(path: str, root: str | None) -> Any:
    """The document of a file, which stays open for its next pages. Raises PdfError."""
    global _last
    import pypdfium2

    try:
        status = os.stat(path)  # noqa: PTH116 - Path raises for a NUL
        key = (path, root, status.st_ino, status.st_size, status.st_mtime_ns)
        if _last is not None and _last.key == key:
            return _last.document
        if _last is not None:
            _last.document.close()
            _last.file.close()
            _last = None
        file = open_regular(path, root)
        document = pypdfium2.PdfDocument(file)
    except pypdfium2.PdfiumError as problem:
        file.close()
        raise PdfError(ENCRYPTED if problem.err_code == PASSWORD_ERROR else DAMAGED) from problem
    except (OSError, ValueError) as problem:
        raise PdfError(file_fault(problem)) from problem
    _last = OpenPdf(key, file, document)
    if not 0 < len(document) <= MAX_PAGES:
        raise PdfError(TOO_MANY if len(document) else NO_PAGES)
    return document


def rendered(path: str, number: int, root: str | None) -> bytes:
    """See `page_png`."""
    import pypdfium2

    document = open_document(path, root)
    if not 0 < number <= len(document):
        raise PdfError(Fault("missing", f"The PDF has {len(document)} pages."))
    try:
        page = document[number - 1]
        sides = page.get_size()
        if not 0 < max(sides) < float("inf") or min(sides) < 0:
            raise PdfError(DAMAGED_PAGE)
        image = page.render(scale=SIDE / max(sides)).to_pil().convert("RGB")
        page.close()
    except pypdfium2.PdfiumError as problem:
        raise PdfError(DAMAGED_PAGE) from problem
    except MemoryError as problem:
        raise PdfError(NO_MEMORY) from problem
    file = BytesIO()
    image.save(file, "PNG", compress_level=1)
    return file.getvalue()
