"""URLs as text, the faults of files at URLs, and calls that wait for their servers."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from math import inf
from time import monotonic
from typing import TypeVar
from urllib.parse import quote, unquote, unquote_plus, urlsplit

from pgcli.process_end import requests_end
from pgcli.records import Fault

WEB_SCHEMES = frozenset({"http", "https"})
OBJECT_SCHEMES = frozenset({"s3", "gs", "az"})
SCHEMES = WEB_SCHEMES | OBJECT_SCHEMES | {"hf"}

_SCHEME = re.compile(r"(?!file:)([A-Za-z][A-Za-z0-9+.-]+)://|(data):", re.IGNORECASE)
#: A user name, and perhaps a password, before the host. In `hf:`, a revision follows an `@`.
_CREDENTIALS = re.compile(
    r"(?<![A-Za-z0-9+.-])((?!hf:)[A-Za-z][A-Za-z0-9+.-]*://)(?!anonymous@)[^/?#\s]*@"
)

#: The query parameters of signed URLs: S3, Google, Alibaba and Tencent.
_PREFIXES = (
    *("x-amz-", "x-goog-", "x-oss-signature", "x-oss-credential", "x-oss-date", "x-oss-expires"),
    *("x-oss-security", "q-sign", "q-ak", "q-key-time", "q-header-list", "q-url-param-list"),
)
_SECRETS = frozenset(
    "signature sig sign hmac token access_token auth_token id_token security-token auth "
    "authorization jwt apikey api_key api-key x-api-key password passwd pwd secret client_secret "
    "sas awsaccesskeyid googleaccessid ossaccesskeyid key-pair-id hdnea hdnts hdntl".split()
)
#: Parameters of a signature that mean something else in URLs without one.
_SIGNED = frozenset(
    "expires expiry exp policy hash-algorithm key timestamp ts nonce ttl se st sp sv sr ss srt si "
    "ses spr sip sdd skoid sktid skt ske sks skv saoid suoid scid".split()
)
_QUERY = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://[^\s?#\"<>]*)\?([^\s#\"<>]*)")


def url_scheme(text: str) -> str | None:
    """The scheme of a URL (`s3`, `https`); None for a path and for a `file:` URI."""
    match = _SCHEME.match(text)
    return (match[1] or match[2]).lower() if match else None


def is_web(url: str) -> bool:
    """Whether a web server serves the URL."""
    return url_scheme(url) in WEB_SCHEMES


def is_in_object_store(url: str) -> bool:
    """Whether the URL is one of S3, Google Cloud Storage or Azure; false for a path."""
    return url_scheme(url) in OBJECT_SCHEMES


def has_credentials(url: str) -> bool:
    """Whether the URL contains a user name or a password; `anonymous@` does not count."""
    return _CREDENTIALS.match(url) is not None


def url_fault(url: str) -> Fault | None:
    """The fault of a URL with an unsupported scheme or with credentials."""
    if url_scheme(url) not in SCHEMES:
        return UNKNOWN_SCHEME
    if has_credentials(url):
        return Fault("url_blocked", "The URL contains a user name or a password.")
    return None


def check_url(url: str) -> None:
    """Raise RemoteError for such a URL."""
    if fault := url_fault(url):
        raise RemoteError(fault)


def without_credentials(text: str) -> str:
    """The text, with user names, passwords, signatures and tokens removed from its URLs.

    A URL that is signed again gives the same text. Other parameters stay, in order.
    """
    return _QUERY.sub(_unsigned, _CREDENTIALS.sub(r"\1", text)) if "://" in text else text


def _unsigned(match: re.Match[str]) -> str:
    fields = match[2].split("&")
    names = [unquote_plus(field.partition("=")[0]).lower() for field in fields]
    secrets = {name for name in names if name in _SECRETS or name.startswith(_PREFIXES)}
    if not secrets:
        return match[0]
    pairs = zip(fields, names, strict=True)
    kept = [field for field, name in pairs if name not in secrets | _SIGNED]
    return f"{match[1]}?{'&'.join(kept)}" if kept else match[1]


def url_path(url: str) -> str:
    """The path that ends in the file's ending: of web URLs unquoted and without the query."""
    if not is_web(url):
        return url.partition("://")[2]
    try:
        return unquote(urlsplit(url).path)
    except ValueError:
        return ""


def parent_url(url: str) -> str:
    """The URL up to the last slash of its path; paths in a manifest are relative to it."""
    if is_web(url):
        url = re.split(r"[?#]", url, maxsplit=1)[0]
    start = url.index("://") + 3
    host, slash, path = url[start:].partition("/")
    return url[:start] + host + "/" + (path.rpartition("/")[0] if slash else "")


def join_url(folder: str, name: str) -> str:
    """The URL of a file, from a folder's URL and a relative path, which is quoted."""
    return f"{folder.rstrip('/')}/{quote(name) if is_web(folder) else name}"


MISSING = Fault("missing", "The URL does not exist.")
DENIED = Fault("permission_denied", "The server denies access to the URL.")
EXPIRED = Fault("permission_denied", "The credentials for the URL have expired.")
UNKNOWN_HOST = Fault("io_error", "The server's host name is unknown.")
UNKNOWN_SCHEME = Fault("url_blocked", "This kind of URL is not supported.")
TOO_SLOW = Fault("timeout", "The server did not answer in time.")
CHANGED = Fault("io_error", "The file at the URL changed while it was read.")


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


#: How long a request is repeated after errors that may pass.
PATIENCE_SECONDS = 180.0
POLL_SECONDS = 0.1

Result = TypeVar("Result")


class Deadline:
    """The end of a request. Once `stopped` is set, no new wait starts."""

    def __init__(self, seconds: float, stopped: threading.Event):
        self._stopped, self.end = stopped, monotonic() + seconds

    def extend(self, seconds: float) -> None:
        """Allow so many seconds more."""
        self.end += seconds

    def remaining(self, limit: float = inf) -> float:
        """The seconds of one wait, at most `limit`. Raises RemoteError at the end or if stopped."""
        now = monotonic()
        if self._stopped.is_set() or now >= requests_end():
            raise RemoteError(Fault("io_error", "The run ended while reading the URL."))
        if now >= self.end:
            raise TransientError(TOO_SLOW)
        return min(limit, self.end - now)

    def pause(self, seconds: float) -> None:
        """Wait between two tries. Raises the same errors as `remaining`."""
        resumes_at = monotonic() + seconds
        while (seconds := resumes_at - monotonic()) > 0:
            self._stopped.wait(self.remaining(min(seconds, POLL_SECONDS)))


def in_thread(call: Callable[[], Result], deadline: Deadline) -> Result:
    """The result of a call that waits for a server. Raises RemoteError as the deadline does.

    No signal interrupts such a call, and it may have no timeout: it runs in a thread, which is
    abandoned at the deadline, or when a signal raises an exception here.
    """
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised again by the waiting thread
            future.set_exception(error)

    deadline.remaining()
    threading.Thread(target=run, name="pgcli-remote", daemon=True).start()
    while not future.done():
        wait([future], deadline.remaining(POLL_SECONDS))
    return future.result()
