"""The faults of remote files: an error code of a row, and one sentence."""

from __future__ import annotations

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


def too_large(limit: int) -> Fault:
    return Fault("too_large", f"The file is larger than {limit} bytes.")


def failed(reason: str) -> Fault:
    return Fault("io_error", f"A request to the address failed: {reason}.")
