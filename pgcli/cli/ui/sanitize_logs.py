"""Makes warnings, log records and uncaught errors of libraries and threads printable."""

from __future__ import annotations

import logging
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pgcli
from pgcli.cli.ui.console import Screen, event_line, presentable, traceback_lines
from pgcli.text import printable

PACKAGE = os.path.join(os.path.dirname(pgcli.__file__), "")  # noqa: PTH118, PTH120 - a str prefix


@contextmanager
def sanitized_logs() -> Iterator[None]:
    """Make warnings, log records and uncaught errors printable for the duration of the block.

    Libraries put file names and a server's answers into them, and Python writes them unchanged.
    Warnings of this package are shown as messages, without the line of code.
    """
    format_warning, make_record = warnings.formatwarning, logging.getLogRecordFactory()
    threading_hook, unraisable_hook = threading.excepthook, sys.unraisablehook

    def sanitized_warning(
        message: Warning | str, category: type[Warning], filename: str, *line: Any, **options: Any
    ) -> str:
        text = printable(presentable(str(message)))
        if Screen.style.log_format == "json":
            return event_line("warning", message=text, category=category.__name__) + "\n"
        if filename.startswith(PACKAGE):
            return f"pgcli: {text}\n"
        return format_warning(text, category, filename, *line, **options)

    def sanitized_record(*arguments: Any, **options: Any) -> logging.LogRecord:
        return sanitize_record(make_record(*arguments, **options))

    warnings.formatwarning = sanitized_warning
    logging.setLogRecordFactory(sanitized_record)
    threading.excepthook, sys.unraisablehook = show_thread_error, show_unraisable
    try:
        yield
    finally:
        warnings.formatwarning = format_warning
        logging.setLogRecordFactory(make_record)
        threading.excepthook, sys.unraisablehook = threading_hook, unraisable_hook


def sanitize_record(record: logging.LogRecord) -> logging.LogRecord:
    """The record with its message on one line, and its traceback as printable text."""
    message, record.args = printable(presentable(record.getMessage())), None
    if Screen.style.log_format == "json":
        level, record.exc_info = record.levelname.lower(), None
        record.msg = event_line("log", level=level, logger=record.name, message=message)
        return record
    record.msg = message
    if record.exc_info:
        lines = traceback_lines(traceback.format_exception(*record.exc_info))
        record.exc_text = presentable("\n".join(lines))
    return record


def show_thread_error(hook: threading.ExceptHookArgs) -> None:
    """Show the exception that ended a thread, except SystemExit."""
    if hook.exc_type is not SystemExit and hook.exc_value is not None:
        Screen().traceback(traceback.format_exception(hook.exc_value))


def show_unraisable(hook: sys.UnraisableHookArgs) -> None:
    """Show an exception that could not be raised, for example one of a finalizer."""
    if hook.exc_value is not None:
        message = hook.err_msg or "exception ignored in"
        entries = traceback.format_exception(hook.exc_value)
        Screen().traceback([f"{message}: {hook.object!r}\n", *entries])
