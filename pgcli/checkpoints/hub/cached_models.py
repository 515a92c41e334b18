"""The PaliGemma checkpoints in the Hub's cache, by name, without the Hub's client."""

from __future__ import annotations

import json
import os
from pathlib import Path


def cache() -> Path:
    """The folder of the Hub's cache, as the environment says."""
    home = os.environ.get("HF_HOME", str(Path("~/.cache/huggingface").expanduser()))
    return Path(os.environ.get("HF_HUB_CACHE", str(Path(home) / "hub")))


def cached_models() -> list[str]:
    """The names of models whose configuration says that they are PaliGemma, sorted."""
    found = set()
    try:
        for config in cache().glob("models--*--*/snapshots/*/config.json"):
            if json.loads(config.read_text(encoding="utf-8")).get("model_type") == "paligemma":
                found.add("/".join(config.parts[-4].split("--")[1:3]))
    except (OSError, ValueError, AttributeError):  # completion has nobody to complain to
        pass
    return sorted(found)
