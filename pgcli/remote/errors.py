"""What can be wrong with an address, as a code of the contract and one sentence."""

from __future__ import annotations

from pgcli.records import Fault

MISSING = Fault("missing", "There is nothing at the address.")
DENIED = Fault("permission_denied", "What is at the address may not be read.")
PRIVATE = Fault(
    "url_blocked",
    "The address leads to a machine that is not public; --allow-private-hosts allows that.",
)
OTHER_SCHEME = Fault("url_blocked", "The address leads to one of a kind that is not read.")
DOWNGRADED = Fault("url_blocked", "The address leads from https to http.")
UNREADABLE = Fault("io_error", "The address cannot be read as one.")
TOO_SLOW = Fault("timeout", "The server did not answer in time.")
CUT = Fault("io_error", "The connection broke off.")
RING = Fault("io_error", "The address leads on and on to others.")
PACKED = Fault("io_error", "The server packed what it sent, though it was asked not to.")
CHANGED = Fault("io_error", "What is at the address changed while it was read.")
STOPPED = Fault("io_error", "The run ended while it was read.")


class RemoteError(OSError):
    """What is at an address cannot be had: its fault."""

    def __init__(self, fault: Fault):
        super().__init__(fault.message)
        self.fault = fault


class TransientError(RemoteError):
    """The same, where another try may do; `after_seconds` is when, if the server said so."""

    def __init__(self, fault: Fault, after_seconds: float | None = None):
        super().__init__(fault)
        self.after_seconds = after_seconds


def too_large(most: int) -> Fault:
    return Fault("too_large", f"The file is larger than {most} bytes.")


def failed(why: str) -> Fault:
    return Fault("io_error", f"Reading the address failed: {why}.")
