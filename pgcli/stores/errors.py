"""The faults of remote files: a row's error code and one sentence."""

from __future__ import annotations

from pgcli.records import Fault

MISSING = Fault("missing", "The URL does not exist.")
DENIED = Fault("permission_denied", "The server denies access to the URL.")
EXPIRED = Fault("permission_denied", "The credentials for the URL have expired.")
UNKNOWN_HOST = Fault("io_error", "The server's host name is unknown.")
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


class RemoteError(OSError):
    """A remote file that cannot be read, with its fault."""

    def __init__(self, fault: Fault):
        super().__init__(fault.message)
        self.fault = fault


class TransientError(RemoteError):
    """An error after which the same command may succeed later, as after a lost server.

    A web server may say after how many seconds.
    """

    def __init__(self, fault: Fault, retry_after: float = 0.0):
        super().__init__(fault)
        self.retry_after = retry_after


def too_large(limit: int) -> Fault:
    return Fault("too_large", f"The file is larger than {limit} bytes.")


def failed(reason: str) -> Fault:
    return Fault("io_error", f"A request to the URL failed: {reason}.")
