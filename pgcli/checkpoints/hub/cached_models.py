"""Lists the PaliGemma checkpoints in the Hub's cache, without importing the Hub's client."""

from __future__ import annotations

import json
import os
from pathlib import Path


def cache_folder() -> Path:
    """The folder of the Hub's cache, from the same variables as the client reads."""
    home = os.environ.get("HF_HOME", str(Path("~/.cache/huggingface").expanduser()))
    return Path(os.environ.get("HF_HUB_CACHE", str(Path(home) / "hub")))


def cached_models() -> list[str]:
    """The sorted names of cached models whose `model_type` is `paligemma`."""
    found = set()
    try:
        for config in cache_folder().glob("models--*--*/snapshots/*/config.json"):
            if json.loads(config.read_text(encoding="utf-8")).get("model_type") == "paligemma":
                found.add("/".join(config.parts[-4].split("--")[1:3]))
    except (OSError, ValueError, AttributeError):  # shell completion cannot report errors
        pass
    return sorted(found)
