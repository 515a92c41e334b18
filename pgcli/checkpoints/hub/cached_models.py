"""The folders of caches, and the models in that of the Hub, without importing its client."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from pgcli.stores.files import read_text

MODEL_TYPES = ("paligemma", "siglip", "siglip_vision_model", "clip", "vit")


def cache_folder() -> Path:
    """The folder of the Hub's cache, from the same variables as in `huggingface_hub.constants`."""
    old_variable = os.environ.get("HUGGINGFACE_HUB_CACHE", str(hub_home() / "hub"))
    return Path(expand(os.environ.get("HF_HUB_CACHE", old_variable)))


def hub_home() -> Path:
    """The folder of the Hub's client."""
    default = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "huggingface"
    return Path(expand(os.environ.get("HF_HOME", str(default))))


def own_cache() -> Path:
    """The folder of what this program may compute again, which may be deleted at any time.

    An empty or relative XDG_CACHE_HOME is ignored: other users could create such a folder.
    """
    folder = Path(expand(os.environ.get("XDG_CACHE_HOME", "")))
    return (folder if folder.is_absolute() else Path(expand("~/.cache"))) / "pgcli"


def expand(path: str) -> str:
    """The path with `~` and variables such as `$USER` replaced."""
    return os.path.expandvars(os.path.expanduser(path))  # noqa: PTH111 - Path raises for ~nobody


def cached_models() -> list[str]:
    """The sorted names of cached models of a `model_type` that is supported."""
    found = set()
    with suppress(OSError):  # shell completion cannot report errors
        for config in cache_folder().glob("models--*--*/snapshots/*/config.json"):
            if is_supported(config):
                found.add("/".join(config.parts[-4].split("--")[1:3]))
    return sorted(found)


def is_supported(config: Path) -> bool:
    """Whether the file is the configuration of a model of `MODEL_TYPES`; a damaged file is not."""
    try:
        value = json.loads(read_text(config))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(value, dict) and value.get("model_type") in MODEL_TYPES
