"""What libraries and threads say by themselves on stderr, without its control characters."""

from __future__ import annotations

import logging
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pgcli.cli.ui.console import Screen, traced
from pgcli.printable import printable


@contextmanager
def asides_tamed() -> Iterator[None]:
    """A block in which warnings, log records and errors that nobody catches are printable.

    Libraries put file names and a server's answers into them, and Python writes them as they are.
    """
    formatted, made = warnings.formatwarning, logging.getLogRecordFactory()
    in_thread, unraisable = threading.excepthook, sys.unraisablehook

    def warning(message: Warning | str, *about: Any, **more: Any) -> str:
        return formatted(printable(str(message)), *about, **more)

    def record(*told: Any, **more: Any) -> logging.LogRecord:
        return tamed(made(*told, **more))

    warnings.formatwarning = warning
    logging.setLogRecordFactory(record)
    threading.excepthook, sys.unraisablehook = of_thread, of_nobody
    try:
        yield
    finally:
        warnings.formatwarning = formatted
        logging.setLogRecordFactory(made)
        threading.excepthook, sys.unraisablehook = in_thread, unraisable


def tamed(record: logging.LogRecord) -> logging.LogRecord:
    """The record with its message on one line, and its traceback as text."""
    record.msg, record.args = printable(record.getMessage()), None
    if record.exc_info:
        record.exc_text = "\n".join(traced(traceback.format_exception(*record.exc_info)))
    return record


def of_thread(ended: threading.ExceptHookArgs) -> None:
    """Show what ended a thread, unless that was its own will."""
    if ended.exc_type is not SystemExit and ended.exc_value is not None:
        Screen().trace(traceback.format_exception(ended.exc_value))


def of_nobody(told: sys.UnraisableHookArgs) -> None:
    """Show an error that had nowhere to go, as in an object's end."""
    if told.exc_value is not None:
        said = told.err_msg or "exception ignored in"
        Screen().trace([f"{said}: {told.object!r}\n", *traceback.format_exception(told.exc_value)])
