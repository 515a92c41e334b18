"""Checks the Hub's cache, login, offline variables and connection."""

from __future__ import annotations

import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

from pgcli.checkpoints.hub.cached_models import cache_folder, token_file
from pgcli.checkpoints.hub.login import environment_token, overriding_variable, stored_token
from pgcli.doctor.finding import Finding, bad, ok, warn
from pgcli.doctor.machine import GB, LARGE_MODEL_BYTES

SIZE_TIMEOUT_SECONDS = 0.5  # for adding up the cache's files
CONNECT_TIMEOUT_SECONDS = 4.0
OFF = {"", "0", "false", "no", "off"}


def cache() -> Finding:
    """The cache's folder: its size, the free disk space, and whether it is writable."""
    folder = cache_folder()
    existing = _nearest_existing(folder)
    move = "export HF_HOME=DIR with a folder of your own on a large disk"
    if not os.access(existing, os.W_OK | os.X_OK):
        return bad("cache", f"{folder} cannot be written", move)
    free = shutil.disk_usage(existing).free
    used, is_complete = _size(folder)
    prefix = "" if is_complete else "over "
    found = f"{folder} holds {prefix}{used / GB:.1f} GB; {free / GB:.1f} GB free"
    if free < LARGE_MODEL_BYTES:
        return warn("cache", f"{found}, and a 3b model takes 6 GB", f"hf cache prune, or {move}")
    return ok("cache", found)


def _nearest_existing(folder: Path) -> Path:
    """The folder, or its nearest parent that exists."""
    return next((f for f in (folder, *folder.parents) if f.exists()), Path("/"))


def _size(folder: Path) -> tuple[int, bool]:
    """Bytes in a folder, without following links, and whether all files were counted in time."""
    total, end = 0, monotonic() + SIZE_TIMEOUT_SECONDS
    for entry in _entries(folder):
        total += entry.stat(follow_symlinks=False).st_size
        if monotonic() > end:
            return total, False
    return total, True


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    yield from _entries(Path(entry.path))
                else:
                    yield entry
    except OSError:
        return


def token() -> tuple[str, str] | None:
    """The token and its source. The token itself must never be shown."""
    if found := environment_token():
        return found[0], f"the environment ({found[1]})"
    value = stored_token(token_file())
    return (value, str(token_file())) if value else None


def login() -> Finding:
    found = token()
    if found is None:
        return warn("login", "no token: gated models cannot be downloaded", "hf auth login")
    value, source = found
    if not value.startswith("hf_"):
        return warn("login", f"the token from {source} is not a Hub token", "hf auth login --force")
    if variable := overriding_variable(token_file()):
        message = f"a token from {source}, which overrides that of hf auth login"
        return warn("login", message, f"unset {variable}")
    return ok("login", f"a token from {source}")


def offline() -> Finding:
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        if os.environ.get(name, "").strip().lower() not in OFF:
            return warn("downloads", f"forbidden by {name}", f"unset {name}")
    return ok("downloads", "allowed")


def reachable() -> Finding:
    """Whether the Hub answers and accepts the token."""
    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"
    found = token()
    path = "/api/whoami-v2" if found else "/api/models?limit=1"
    headers = {"Authorization": f"Bearer {found[0]}"} if found else {}
    check = "check the network, HTTPS_PROXY and HF_ENDPOINT"
    try:
        request = urllib.request.Request(endpoint + path, headers=headers)
        with urllib.request.urlopen(request, timeout=CONNECT_TIMEOUT_SECONDS):
            return ok("hub", f"{endpoint} answers" + (" and accepts the token" if found else ""))
    except urllib.error.HTTPError as error:
        if error.code in (401, 403) and found:
            return bad("hub", f"{endpoint} rejects the token", "hf auth login --force")
        return warn("hub", f"{endpoint} answers with {error.code}", "try again later")
    except (OSError, ValueError) as error:  # ValueError: not a valid address
        reason = getattr(error, "reason", None) or error
        return bad("hub", f"{endpoint} cannot be reached: {reason}", check)
