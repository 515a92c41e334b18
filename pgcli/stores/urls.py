"""URLs as text: their scheme, path, folder and credentials."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

from pgcli.stores.signatures import without_signatures

WEB_SCHEMES = frozenset({"http", "https"})
OBJECT_SCHEMES = frozenset({"s3", "gs", "az"})
STORE_SCHEMES = OBJECT_SCHEMES | {"hf"}
SCHEMES = WEB_SCHEMES | STORE_SCHEMES

#: Characters of a path or a query that are sent as they are.
_UNQUOTED = "%/:=&?~+!$,;'@()*[]|"

#: A user name, and perhaps a password, before the host. `hf:` writes a revision after an `@`.
_CREDENTIALS = re.compile(
    r"(?<![A-Za-z0-9+.-])((?!hf:)[A-Za-z][A-Za-z0-9+.-]*://)(?!anonymous@)[^/?#\s]*@"
)


def scheme_of(url: str) -> str:
    """The scheme in lower case."""
    return url.partition("://")[0].lower()


def is_web(url: str) -> bool:
    """Whether a web server serves the URL."""
    return scheme_of(url) in WEB_SCHEMES


def is_in_object_store(url: str) -> bool:
    """Whether S3, Google Cloud Storage or Azure has what is at the URL; false for a path."""
    return "://" in url and scheme_of(url) in OBJECT_SCHEMES


def has_credentials(url: str) -> bool:
    """Whether the URL holds a user name or a password; `anonymous@` is not one."""
    return _CREDENTIALS.match(url) is not None


def without_credentials(text: str) -> str:
    """The text, with user names, passwords, signatures and tokens removed from the URLs in it."""
    return without_signatures(_CREDENTIALS.sub(r"\1", text)) if "://" in text else text


def url_path(url: str) -> str:
    """The path that ends in the kind of file: of web URLs unquoted and without the query."""
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
    """The URL of a file, from the URL of a folder and a relative path, which is quoted."""
    return f"{folder.rstrip('/')}/{quote(name) if is_web(folder) else name}"


class Target(NamedTuple):
    """The parts of a web URL that a request needs."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """The value of the header Host."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        is_default = self.port == (443 if self.scheme == "https" else 80)
        return host if is_default else f"{host}:{self.port}"


def parse_target(url: str) -> Target:
    """The parts of a web URL. Raises ValueError."""
    parts = urlsplit(url)
    host = parts.hostname.encode("idna").decode() if parts.hostname else ""
    if not host:
        raise ValueError("no host")
    path = quote(parts.path or "/", safe=_UNQUOTED)
    path += f"?{quote(parts.query, safe=_UNQUOTED)}" if parts.query else ""
    return Target(parts.scheme, host, parts.port or (443 if parts.scheme == "https" else 80), path)
