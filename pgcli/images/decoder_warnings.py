"""Keep what decoders say to themselves about broken files away from the terminal."""

from __future__ import annotations

import ctypes
import logging
import warnings
from contextlib import suppress

from PIL import _imaging

_NOWHERE = logging.NullHandler()


def silence_decoders() -> None:
    """Silence, for the rest of this process, what Pillow and libtiff write about damaged files.

    Only what would go to stderr by default: the warnings that Pillow raises over its own lines, its
    log where the program has set up none, and libtiff's messages. All of it is in the fault.
    """
    # Set for good, as `warnings.catch_warnings` and a moved stderr would reach into other threads,
    # the one that draws the progress bar among them.
    warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
    logging.getLogger("PIL").addHandler(_NOWHERE)
    with suppress(OSError, AttributeError):  # a Pillow that hides its libtiff, or has none
        ctypes.CDLL(_imaging.__file__).TIFFSetErrorHandler(None)
