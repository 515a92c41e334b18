"""The Hub: where models are kept, whether they may be fetched, and by whom."""

from __future__ import annotations

import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

from pgcli.checkpoints.hub.login import environment_token, overriding_variable, stored_token
from pgcli.doctor.finding import Finding, bad, ok, warn
from pgcli.doctor.machine import A_LARGE_MODEL, GB

SECONDS_TO_LOOK = 0.5  # at a cache of however many files
SECONDS_TO_ANSWER = 4.0
OFF = {"", "0", "false", "no", "off"}


def home() -> Path:
    """The folder of the Hub's client, by the same variables as it goes by itself."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    return Path(os.environ.get("HF_HOME") or default).expanduser()


def cache() -> Finding:
    """Where downloads are kept: how much is there, how much more fits, and whether it may."""
    folder = Path(os.environ.get("HF_HUB_CACHE") or home() / "hub").expanduser()
    there = _nearest(folder)
    elsewhere = "export HF_HOME=DIR with a folder of your own on a large disk"
    if not os.access(there, os.W_OK | os.X_OK):
        return bad("cache", f"{folder} cannot be written", elsewhere)
    free = shutil.disk_usage(there).free
    held, whole = _size(folder)
    found = f"{folder} holds {'' if whole else 'over '}{held / GB:.1f} GB; {free / GB:.1f} GB free"
    if free < A_LARGE_MODEL:
        return warn(
            "cache", f"{found}, and a 3b model takes 6 GB", f"hf cache prune, or {elsewhere}"
        )
    return ok("cache", found)


def _nearest(folder: Path) -> Path:
    """The folder, or the first above it that exists: where it would be made."""
    return next((f for f in (folder, *folder.parents) if f.exists()), Path("/"))


def _size(folder: Path) -> tuple[int, bool]:
    """Bytes in a folder, links not followed, and whether there was time to see all of it."""
    total, end = 0, monotonic() + SECONDS_TO_LOOK
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
    """The token that is set, and where it comes from. The first must never be shown."""
    if found := environment_token():
        return found[0], f"the environment ({found[1]})"
    value = stored_token(token_file())
    return (value, str(token_file())) if value else None


def token_file() -> Path:
    return Path(os.environ.get("HF_TOKEN_PATH") or home() / "token").expanduser()


def login() -> Finding:
    known = token()
    if known is None:
        return warn("login", "no token: gated models cannot be downloaded", "hf auth login")
    value, source = known
    if not value.startswith("hf_"):
        return warn("login", f"a token from {source} that is no Hub token", "hf auth login --force")
    if variable := overriding_variable(token_file()):
        found = f"a token from {source}, which hides another one, that of hf auth login"
        return warn("login", found, f"unset {variable}")
    return ok("login", f"a token from {source}")


def offline() -> Finding:
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        if os.environ.get(name, "").strip().lower() not in OFF:
            return warn("downloads", f"forbidden by {name}", f"unset {name}")
    return ok("downloads", "allowed")


def reachable() -> Finding:
    """Whether the Hub answers, and whether it knows the token."""
    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"
    known = token()
    path = "/api/whoami-v2" if known else "/api/models?limit=1"
    headers = {"Authorization": f"Bearer {known[0]}"} if known else {}
    check = "check the network, HTTPS_PROXY and HF_ENDPOINT"
    try:
        request = urllib.request.Request(endpoint + path, headers=headers)
        with urllib.request.urlopen(request, timeout=SECONDS_TO_ANSWER):
            return ok("hub", f"{endpoint} answers" + (" and knows the token" if known else ""))
    except urllib.error.HTTPError as error:
        if error.code in (401, 403) and known:
            return bad("hub", f"{endpoint} does not know the token", "hf auth login --force")
        return warn("hub", f"{endpoint} answers with {error.code}", "try again later")
    except (OSError, ValueError) as error:  # ValueError: an address that is none
        reason = getattr(error, "reason", None) or error
        return bad("hub", f"{endpoint} cannot be reached: {reason}", check)
