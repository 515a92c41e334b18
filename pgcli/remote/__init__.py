"""Files at URLs: images, manifests, archives and folders."""

from __future__ import annotations

from pgcli.remote.errors import RemoteError
from pgcli.remote.url_reader import RemoteFile, UrlReader, make_url_reader

__all__ = ["RemoteError", "RemoteFile", "UrlReader", "make_url_reader"]
