"""The faults of remote files: an error code of a row, and one sentence."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

from pgcli.records import Fault

MISSING = Fault("missing", "There is nothing at the address.")
DENIED = Fault("permission_denied", "The server denies access to the address.")
EXPIRED = Fault("permission_denied", "The credentials for the address have expired.")
NO_CREDENTIALS = Fault("permission_denied", "There are no credentials for the address.")
UNKNOWN_HOST = Fault("io_error", "The name of the server is not known.")
NO_CONNECTION = Fault("io_error", "There is no connection to the server, or it broke.")
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
#: The statuses of a server that may answer the same request a moment later.
BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})
#: S3 has no status of its own for these; the status is 400 or 403.
EXPIRED_CODES = re.compile("<Code>(ExpiredToken|TokenRefreshRequired)</Code>")
CODE = re.compile("<Code>([A-Za-z]{1,64})</Code>")
#: Where the libraries ask for the credentials of a machine in a cloud if there are no others.
METADATA = re.compile(r"://(169\.254\.(169\.254|170\.2)|metadata\.google\.internal)/")
#: How `obstore` describes an error. Texts of others are quoted there, so that none looks so.
_SOURCE = "\n\nDebug source:\n"
_STATUS = re.compile(r"\n +inner: Status \{\n +status: (\d{3}),\n")
_URI = re.compile(r"\n +uri: Some\(\n +(\S+),\n")


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


def is_temporary(error: RemoteError) -> bool:
    """Whether the same request may succeed later, without a change of the command."""
    return isinstance(error, TransientError) or error.fault in (EXPIRED, UNKNOWN_HOST)


@contextmanager
def remote_errors(kind: type[Exception]) -> Iterator[None]:
    """Turn what a storage library raises, of this kind, into RemoteError or TransientError.

    By types, the status of the response, and what the library says of the connection: messages may
    hold addresses.
    """
    try:
        yield
    except RemoteError:
        raise
    except (kind, OSError, ValueError) as error:
        response = getattr(error, "response", None)
        source = source_of(error)
        status = getattr(response, "status_code", None) or status_in(source)
        if (fault := permanent_fault(error, status)) is not None:
            raise RemoteError(fault) from error
        if status is not None:
            fault = TOO_SLOW if status == 408 else failed(answered(status, str(error)))
            after = retry_after(getattr(response, "headers", {}).get("Retry-After", ""))
            raise (
                TransientError(fault, after) if status in BUSY else RemoteError(fault)
            ) from error
        name = type(error).__name__
        if isinstance(error, TimeoutError) or "Timeout" in name or "kind: Timeout" in source:
            raise TransientError(TOO_SLOW) from error
        is_connection = isinstance(error, ConnectionError) and name != "OfflineModeIsEnabled"
        is_http = isinstance(error, kind) and not source  # of the Hub's library
        if is_connection or is_http or "HttpError {" in source:
            raise TransientError(NO_CONNECTION) from error
        raise RemoteError(failed(reason(error))) from error


def permanent_fault(error: Exception, status: int | None) -> Fault | None:
    """The fault of an error that stays however often it is tried; None for any other."""
    source = source_of(error)
    if isinstance(error, FileNotFoundError) or status == 404:
        return MISSING
    if type(error).__name__ == "PreconditionError":
        return CHANGED
    if status in (400, 403) and EXPIRED_CODES.search(str(error)):
        return EXPIRED
    uri = _URI.search(source)
    if uri is not None and METADATA.search(uri[1]) and status not in BUSY:
        return NO_CREDENTIALS
    is_denied = isinstance(error, PermissionError) or type(error).__name__ in DENIALS
    if is_denied or status in (401, 403):
        return DENIED
    is_unknown = status is None and "Name or service not known" in (source or str(error))
    return UNKNOWN_HOST if is_unknown else None


def source_of(error: Exception) -> str:
    """How `obstore` describes the cause of an error; empty where there is no such text.

    A ValueError is about the name of a file, and has it as it is.
    """
    _, mark, source = str(error).rpartition(_SOURCE)
    return source if mark and not isinstance(error, ValueError) else ""


def status_in(source: str) -> int | None:
    """The status of the response in the cause of an error, if there was one."""
    status = _STATUS.search(source)
    return None if status is None else int(status[1])


def answered(status: int, message: str = "") -> str:
    """What a server answered, with the code of an S3 server that the message quotes."""
    phrase = next((known.phrase for known in HTTPStatus if known == status), "")
    code = CODE.search(message)
    return f"the server answered {status} {phrase}".rstrip() + (f" ({code[1]})" if code else "")


def retry_after(text: str) -> float:
    """The seconds of a header Retry-After, which may be a date; 0 where it is neither."""
    try:
        return float(text)
    except ValueError:
        pass
    from email.utils import parsedate_to_datetime  # slow to import

    try:
        return parsedate_to_datetime(text).timestamp() - time.time()
    except (ValueError, TypeError, OverflowError):
        return 0.0


def reason(error: Exception) -> str:
    """What went wrong, for display only: the end of the message, without the URL before it."""
    text = (str(error).splitlines() or [""])[0].rpartition(" - ")[2].rstrip(". :")
    return text if text and "://" not in text else f"the store failed with {type(error).__name__}"


def too_large(limit: int) -> Fault:
    return Fault("too_large", f"The file is larger than {limit} bytes.")


def failed(reason: str) -> Fault:
    return Fault("io_error", f"A request to the address failed: {reason}.")
