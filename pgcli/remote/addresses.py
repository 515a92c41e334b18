"""Addresses as text: what kind they are, how they are shown, what lies beside them."""

from __future__ import annotations

import re
from urllib.parse import quote, unquote, urlsplit

WEB_SCHEMES = frozenset({"http", "https"})
STORE_SCHEMES = frozenset({"s3", "gs", "hf"})
SCHEMES = WEB_SCHEMES | STORE_SCHEMES

#: A name, and maybe a password, before the host. A repository's revision stands elsewhere.
_USER = re.compile(
    r"(?<![A-Za-z0-9+.-])((?!hf:)[A-Za-z][A-Za-z0-9+.-]*://)(?!anonymous@)[^/?#\s]*@"
)


def scheme_of(address: str) -> str:
    """The address's kind, in lower case."""
    return address.partition("://")[0].lower()


def is_web(address: str) -> bool:
    """Whether a server of the web is asked for it."""
    return scheme_of(address) in WEB_SCHEMES


def without_credentials(text: str) -> str:
    """The text with no address in it that brings a user's name or password."""
    return _USER.sub(r"\1", text)


def url_path(address: str) -> str:
    """The path that the ending is told from: of the web's without the query, its escapes undone."""
    if not is_web(address):
        return address.partition("://")[2]
    try:
        return unquote(urlsplit(address).path)
    except ValueError:  # brackets that hold no address
        return ""


def parent_url(address: str) -> str:
    """The address up to the last slash of its path, which a manifest's paths are relative to."""
    if is_web(address):
        address = re.split(r"[?#]", address, maxsplit=1)[0]
    start = address.index("://") + 3
    host, slash, path = address[start:].partition("/")
    return address[:start] + host + "/" + (path.rpartition("/")[0] if slash else "")


def join_url(folder: str, name: str) -> str:
    """The address of a file by its path relative to a folder's; odd characters are escaped."""
    return f"{folder.rstrip('/')}/{quote(name) if is_web(folder) else name}"
