"""Checks the Hub's cache, login and connection, as huggingface_hub sees them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from pgcli.doctor.finding import Finding, bad, ok, warn
from pgcli.doctor.machine import GB, LARGE_MODEL_BYTES
from pgcli.printable import first_line

MOVE = "export HF_HOME=DIR with a folder of your own on a large disk"


def findings(*, online: bool) -> Iterator[Finding]:
    """The findings about the Hub; only with `online` is it reached."""
    try:
        from huggingface_hub import constants
    except ImportError as problem:
        yield bad("hub", f"huggingface_hub cannot be imported: {first_line(problem)}", "see above")
        return
    yield cache(Path(constants.HF_HUB_CACHE))
    yield login()
    if constants.HF_HUB_OFFLINE:
        yield warn("downloads", "forbidden by HF_HUB_OFFLINE", "unset HF_HUB_OFFLINE")
    elif online:
        yield reachable()


def cache(folder: Path) -> Finding:
    """The cache's folder: whether it can be written, and the space on its disk."""
    existing = next((path for path in (folder, *folder.parents) if path.exists()), Path("/"))
    if not os.access(existing, os.W_OK | os.X_OK):
        return bad("cache", f"{folder} cannot be written", MOVE)
    free = shutil.disk_usage(existing).free
    description = f"{folder}, {free / GB:.1f} GB free"
    if free < LARGE_MODEL_BYTES:
        return warn(
            "cache", f"{description}, and a 3b model takes 6 GB", f"hf cache prune, or {MOVE}"
        )
    return ok("cache", description)


def login() -> Finding:
    """Whether there is a token. The token itself is never shown."""
    from huggingface_hub import get_token

    from pgcli.checkpoints.hub import token_source

    token = get_token()
    if token is None:
        return warn("login", "no token: gated models cannot be downloaded", "hf auth login")
    if not token.startswith("hf_"):
        return warn("login", "the token is not one of the Hub", "hf auth login --force")
    return ok("login", f"a token, from {token_source()}")


def reachable() -> Finding:
    """Whether the Hub answers and accepts the token."""
    from huggingface_hub import HfApi, constants, get_token
    from huggingface_hub.errors import HfHubHTTPError

    endpoint = constants.ENDPOINT
    try:
        if get_token():
            HfApi().whoami()
            return ok("hub", f"{endpoint} answers and accepts the token")
        next(iter(HfApi().list_models(limit=1)), None)
        return ok("hub", f"{endpoint} answers")
    except HfHubHTTPError as problem:
        if getattr(problem.response, "status_code", None) in (401, 403):
            return bad("hub", f"{endpoint} rejects the token", "hf auth login --force")
        return warn("hub", f"{endpoint}: {first_line(problem)}", "try again later")
    except Exception as problem:  # noqa: BLE001 - whatever the client raises, it is not reached
        check = "check the network, HTTPS_PROXY and HF_ENDPOINT"
        return bad("hub", f"{endpoint} cannot be reached: {first_line(problem)}", check)
