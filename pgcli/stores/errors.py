"""The faults of remote files: a row's error code and one sentence."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

from pgcli.records import Fault

MISSING = Fault("missing", "The URL does not exist.")
DENIED = Fault("permission_denied", "The server denies access to the URL.")
EXPIRED = Fault("permission_denied", "The credentials for the URL have expired.")
NO_CREDENTIALS = Fault("permission_denied", "There are no credentials for the URL.")
UNKNOWN_HOST = Fault("io_error", "The server's host name is unknown.")
UNREACHABLE = Fault("io_error", "The server cannot be reached.")
BROKEN = Fault("io_error", "The connection to the server broke.")
PRIVATE = Fault(
    "url_blocked",
    "The URL leads to a private host; --allow-private-hosts allows it.",
)
UNKNOWN_SCHEME = Fault("url_blocked", "This kind of URL is not supported.")
CREDENTIALS = Fault("url_blocked", "The URL contains a user name or a password.")
DOWNGRADED = Fault("url_blocked", "The URL redirects from https to http.")
INVALID_URL = Fault("io_error", "The URL is not valid.")
TOO_SLOW = Fault("timeout", "The server did not answer in time.")
CUT = Fault("io_error", "The server's response is truncated or not valid HTTP.")
TOO_MANY_REDIRECTS = Fault("io_error", "The URL redirects too many times.")
COMPRESSED = Fault("io_error", "The server compressed its response without being asked to.")
CHANGED = Fault("io_error", "The file at the URL changed while it was read.")
NO_ROOM = Fault(
    "io_error", "The temporary folder has no space for the file; set TMPDIR to another."
)
STOPPED = Fault("io_error", "The run ended while reading the URL.")

#: Exceptions of `obstore` for denied access.
DENIALS = ("PermissionDeniedError", "UnauthenticatedError")
#: HTTP statuses after which the same request may succeed a moment later.
BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})
#: S3 has no HTTP status for these; the status is 400 or 403.
EXPIRED_CODES = re.compile("<Code>(ExpiredToken|TokenRefreshRequired)</Code>")
CODE = re.compile("<Code>([A-Za-z]{1,64})</Code>")
#: Where the libraries request a cloud machine's credentials if they have no others.
METADATA = re.compile(r"://(169\.254\.(169\.254|170\.2)|metadata\.google\.internal)/")
#: Starts `obstore`'s description of an error. It quotes foreign text, so that none looks like it.
_SOURCE = "\n\nDebug source:\n"
_STATUS = re.compile(r"\n +inner: Status \{\n +status: (\d{3}),\n")
_CONNECT = re.compile(r"\n +ConnectError\(\n")
_URI = re.compile(r"\n +uri: Some\(\n +(\S+),\n")


class RemoteError(OSError):
    """A remote file that cannot be read, with its fault."""

    def __init__(self, fault: Fault):
        super().__init__(fault.message)
        self.fault = fault


class TransientError(RemoteError):
    """An error that a retry may fix; the server may say after how many seconds."""

    def __init__(self, fault: Fault, retry_after: float = 0.0):
        super().__init__(fault)
        self.retry_after = retry_after


def is_temporary(error: RemoteError) -> bool:
    """Whether the same request may succeed later with the same command."""
    return isinstance(error, TransientError) or error.fault in (EXPIRED, UNKNOWN_HOST)


class Unreachable(TransientError):
    """No connection to the server: no name service, no route, or nobody answers there."""


@contextmanager
def remote_errors(kind: type[Exception]) -> Iterator[None]:
    """Turn a storage library's exceptions of this kind into RemoteError or TransientError.

    By their types, the status of the response, and the library's words about the connection;
    messages may contain URLs.
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
        if name in ("ConnectError", "ConnectTimeout") or _CONNECT.search(source):
            is_unnamed = "Temporary failure in name resolution" in (source or str(error))
            raise Unreachable(UNKNOWN_HOST if is_unnamed else UNREACHABLE) from error
        if isinstance(error, TimeoutError) or "Timeout" in name or "kind: Timeout" in source:
            raise TransientError(TOO_SLOW) from error
        is_connection = isinstance(error, ConnectionError) and name != "OfflineModeIsEnabled"
        is_http = isinstance(error, kind) and not source  # from the Hub's library
        if is_connection or is_http or "HttpError {" in source:
            raise TransientError(BROKEN) from error
        raise RemoteError(failed(reason(error))) from error


def permanent_fault(error: Exception, status: int | None) -> Fault | None:
    """The fault of a permanent error; None for any other."""
    source = source_of(error)
    if type(error) is ValueError:  # `obstore` cannot express the name
        return rejected_name(reason(error))
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
    """The description of an error's cause by `obstore`; empty without one.

    A ValueError is about the name of a file and contains the unquoted name.
    """
    _, mark, source = str(error).rpartition(_SOURCE)
    return source if mark and not isinstance(error, ValueError) else ""


def status_in(source: str) -> int | None:
    """The status of the response in an error's cause, if there was one."""
    status = _STATUS.search(source)
    return None if status is None else int(status[1])


def answered(status: int, message: str = "") -> str:
    """The server's response, with the S3 error code if the message quotes it."""
    phrase = next((known.phrase for known in HTTPStatus if known == status), "")
    code = CODE.search(message)
    return f"the server answered {status} {phrase}".rstrip() + (f" ({code[1]})" if code else "")


def retry_after(text: str) -> float:
    """The seconds of a Retry-After header, which may be a date; 0 for anything else."""
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
    """The error for display: the end of the message, without the URL before it."""
    text = (str(error).splitlines() or [""])[0].rpartition(" - ")[2].rstrip(". :")
    return text if text and "://" not in text else f"the store failed with {type(error).__name__}"


def too_large(limit: int) -> Fault:
    return Fault("too_large", f"The file is larger than {limit} bytes.")


def rejected_name(reason: str) -> Fault:
    return Fault("path_not_allowed", f"obstore cannot read an object of this name: {reason}.")


def failed(reason: str) -> Fault:
    return Fault("io_error", f"A request to the URL failed: {reason}.")
