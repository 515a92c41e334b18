"""Silences what image decoders print about broken files."""

from __future__ import annotations

import ctypes
import logging
import warnings
from contextlib import suppress

from PIL import _imaging

_NULL_HANDLER = logging.NullHandler()


def silence_decoders() -> None:
    """Silence, for the rest of this process, what Pillow and libtiff print about damaged files.

    Only what goes to stderr by default: warnings raised in Pillow's own lines, its log if the
    program has configured none, and libtiff's messages. The item's fault has the reason.
    """
    # Permanently: `warnings.catch_warnings` and a redirected stderr would affect other threads,
    # such as the one that draws the progress bar.
    warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
    logging.getLogger("PIL").addHandler(_NULL_HANDLER)
    with suppress(OSError, AttributeError):  # a Pillow without libtiff, or with a hidden one
        ctypes.CDLL(_imaging.__file__).TIFFSetErrorHandler(None)
