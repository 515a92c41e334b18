"""URLs as text: their scheme, path, folder and credentials."""

from __future__ import annotations

import re
from urllib.parse import quote, unquote, unquote_plus, urlsplit

from pgcli.records import Fault
from pgcli.stores.errors import CREDENTIALS, UNKNOWN_SCHEME, RemoteError

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


def scheme_of(url: str) -> str:
    """The scheme in lower case."""
    return url.partition("://")[0].lower()


def is_web(url: str) -> bool:
    """Whether a web server serves the URL."""
    return scheme_of(url) in WEB_SCHEMES


def is_in_object_store(url: str) -> bool:
    """Whether the URL is one of S3, Google Cloud Storage or Azure; false for a path."""
    return "://" in url and scheme_of(url) in OBJECT_SCHEMES


def has_credentials(url: str) -> bool:
    """Whether the URL contains a user name or a password; `anonymous@` does not count."""
    return _CREDENTIALS.match(url) is not None


def url_fault(url: str) -> Fault | None:
    """The fault of a URL with an unsupported scheme or with credentials."""
    if scheme_of(url) not in SCHEMES:
        return UNKNOWN_SCHEME
    return CREDENTIALS if has_credentials(url) else None


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
    except ValueError:  # invalid brackets
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
