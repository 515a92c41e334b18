"""The faults of remote files: an error code of a row, and one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from pgcli.records import Fault

MISSING = Fault("missing", "There is nothing at the address.")
DENIED = Fault("permission_denied", "The server denies access to the address.")
PRIVATE = Fault(
    "url_blocked",
    "The address leads to a machine that is not public; --allow-private-hosts allows that.",
)
UNKNOWN_SCHEME = Fault("url_blocked", "Addresses of this kind are not read.")
CREDENTIALS = Fault("url_blocked", "The address holds a user name or a password.")
DOWNGRADED = Fault("url_blocked", "The address redirects from https to http.")
INVALID_URL = Fault("io_error", "The address is not a valid URL.")
TOO_SLOW = Fault("timeout", "The server did not answer in time.")
CUT = Fault("io_error", "The answer of the server is cut off, or is not valid HTTP.")
TOO_MANY_REDIRECTS = Fault("io_error", "The address redirects too many times.")
COMPRESSED = Fault("io_error", "The server compressed its answer without being asked to.")
CHANGED = Fault("io_error", "The file at the address changed while it was read.")
NO_ROOM = Fault(
    "io_error", "There is no room for the file in the temporary folder; TMPDIR names another one."
)
STOPPED = Fault("io_error", "The run ended while the address was read.")

#: Exceptions of `obstore` for what may not be read.
DENIALS = ("PermissionDeniedError", "UnauthenticatedError")
#: A store that failed after so long did not answer in time; `obstore` has no exception for that.
SLOW_SECONDS = 30.0


class RemoteError(OSError):
    """A remote file that cannot be read, and its fault."""

    def __init__(self, fault: Fault):
        super().__init__(fault.message)
        self.fault = fault


class TransientError(RemoteError):
    """An error that may not occur again; the server may say after how many seconds to retry."""

    def __init__(self, fault: Fault, retry_after: float = 0.0):
        super().__init__(fault)
        self.retry_after = retry_after


@contextmanager
def remote_errors(kind: type[Exception]) -> Iterator[None]:
    """Turn what a storage library raises, of this kind, into RemoteError.

    By types and the status of the response alone: messages may hold addresses.
    """
    began = monotonic()
    try:
        yield
    except RemoteError:
        raise
    except (kind, OSError, ValueError) as error:
        name = type(error).__name__
        status = getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(error, FileNotFoundError) or status == 404:
            fault = MISSING
        elif isinstance(error, PermissionError) or name in DENIALS or status in (401, 403):
            fault = DENIED
        elif (
            isinstance(error, TimeoutError)
            or "Timeout" in name
            or monotonic() - began >= SLOW_SECONDS
        ):
            fault = TOO_SLOW
        else:
            fault = failed(f"the server answered {status}" if status else reason(error))
        raise RemoteError(fault) from error


def reason(error: Exception) -> str:
    """What went wrong, for display only: the end of the message, without the URL before it."""
    text = (str(error).splitlines() or [""])[0].rpartition(" - ")[2].rstrip(". :")
    return text if text and "://" not in text else f"the store failed with {type(error).__name__}"


def too_large(limit: int) -> Fault:
    return Fault("too_large", f"The file is larger than {limit} bytes.")


def failed(reason: str) -> Fault:
    return Fault("io_error", f"A request to the address failed: {reason}.")
