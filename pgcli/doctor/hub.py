"""Checks the Hub's cache and login, as huggingface_hub sees them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from pgcli.doctor.finding import Finding, bad, ok, warn
from pgcli.doctor.machine import GB, LARGE_MODEL_BYTES
from pgcli.printable import first_line

MOVE = "export HF_HOME=DIR, a writable folder on a large disk"


def hub_findings() -> Iterator[Finding]:
    """The findings about the Hub, without network access."""
    try:
        from huggingface_hub import constants
    except ImportError as problem:
        yield bad("hub", f"huggingface_hub cannot be imported: {first_line(problem)}", "see above")
        return
    yield cache(Path(constants.HF_HUB_CACHE))
    yield login()
    if constants.HF_HUB_OFFLINE:
        yield warn("downloads", "forbidden by HF_HUB_OFFLINE", "unset HF_HUB_OFFLINE")


def cache(folder: Path) -> Finding:
    """Whether the cache folder is writable, and the free space on its disk."""
    existing = next((path for path in (folder, *folder.parents) if path.exists()), Path("/"))
    if not os.access(existing, os.W_OK | os.X_OK):
        return bad("cache", f"{folder} is not writable", MOVE)
    free = shutil.disk_usage(existing).free
    description = f"{folder}, {free / GB:.1f} GB free"
    if free < LARGE_MODEL_BYTES:
        return warn("cache", f"{description}; a 3b model needs 6 GB", f"hf cache prune, or {MOVE}")
    return ok("cache", description)


def login() -> Finding:
    """Whether a token is set. The token itself is never shown."""
    from huggingface_hub import get_token

    from pgcli.checkpoints.hub import token_source

    token = get_token()
    if token is None:
        return warn("login", "no token: gated models cannot be downloaded", "hf auth login")
    if not token.startswith("hf_"):
        return warn("login", "the token is not a Hugging Face token", "hf auth login --force")
    return ok("login", f"token from {token_source()}")
