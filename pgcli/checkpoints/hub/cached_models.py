"""Lists the PaliGemma checkpoints in the Hub's cache, without importing the Hub's client."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path


def cache_folder() -> Path:
    """The folder of the Hub's cache, from the same variables as in `huggingface_hub.constants`."""
    default_home = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "huggingface"
    home = Path(expand(os.environ.get("HF_HOME", str(default_home))))
    old_variable = os.environ.get("HUGGINGFACE_HUB_CACHE", str(home / "hub"))
    return Path(expand(os.environ.get("HF_HUB_CACHE", old_variable)))


def expand(path: str) -> str:
    """The path with `~` and variables such as `$USER` replaced."""
    return os.path.expandvars(os.path.expanduser(path))  # noqa: PTH111 - Path raises for ~nobody


def cached_models() -> list[str]:
    """The sorted names of cached models whose `model_type` is `paligemma`."""
    found = set()
    with suppress(OSError):  # shell completion cannot report errors
        for config in cache_folder().glob("models--*--*/snapshots/*/config.json"):
            if is_paligemma(config):
                found.add("/".join(config.parts[-4].split("--")[1:3]))
    return sorted(found)


def is_paligemma(config: Path) -> bool:
    """Whether the file is the configuration of a PaliGemma model; a damaged file is not."""
    try:
        value = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(value, dict) and value.get("model_type") == "paligemma"
