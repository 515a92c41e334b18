"""Finds a checkpoint's files by folder, Hub name, `demo` or `demo-towers`.

It imports neither torch nor the client of the Hub, which are slow to import.
"""

from __future__ import annotations

import os
import re
import shlex
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from pgcli import registry
from pgcli.checkpoints.files import CheckpointKind, sha256
from pgcli.errors import ModelUnavailable
from pgcli.stores.files import read_json

if TYPE_CHECKING:
    from pgcli.checkpoints.hub import DownloadProgress

DEMO, DEMO_TOWERS = "demo", "demo-towers"
BUILTIN = Path(__file__).parent.parent / "builtin"
BUILTIN_TOWERS = Path(__file__).parent.parent / "builtin_towers"
REVISION_LENGTH = 12
#: The mask decoder of a model, in its folder.
MASK_DECODER = "mask_decoder.safetensors"
#: Downloads the mask decoder that PaliGemma was trained with.
FETCH_DECODER = "curl -O https://storage.googleapis.com/big_vision/paligemma/vae-oid.npz"
#: The model types that shell completion offers.
MODEL_TYPES = {name.partition(" ")[0] for name in registry.names("families")}
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint on disk: its name as the user typed it, and its revision, if it has one."""

    name: str
    folder: Path
    revision: str | None = None

    @property
    def label(self) -> str:
        """The `model` column of the rows."""
        return f"{self.name}@{self.revision}" if self.revision else self.name


def find(
    name: str,
    revision: str | None = None,
    *,
    kind: CheckpointKind = "model",
    progress: DownloadProgress | None = None,
) -> Checkpoint:
    """The files of a model: a folder, a Hub name or a built-in one; downloads missing files.

    An existing folder takes precedence over a Hub name. The kind `adapter` finds the two files of
    an adapter, and gives `demo` and `demo-towers` no special meaning. A download reports to
    `progress`; without it the client of the Hub draws its bars.

    Raises ModelUnavailable with the remedy: licence not accepted, no token, offline and not cached,
    unknown name or revision; InvalidCheckpoint if the files on the Hub or in the cache are damaged.
    """
    folder = folder_of(name, kind)
    for builtin, builtin_folder in builtin_models().items():
        if folder == builtin_folder:
            return Checkpoint(builtin, folder, file_digest(folder / "model.safetensors"))
    if folder is not None:
        return Checkpoint(name, folder)
    from pgcli.checkpoints import hub

    snapshot = hub.snapshot(name, revision, kind=kind, progress=progress)
    return Checkpoint(name, snapshot, snapshot.name)


def builtin_models() -> dict[str, Path]:
    """The folders of the built-in models by their names."""
    return {DEMO: BUILTIN, DEMO_TOWERS: BUILTIN_TOWERS}


def own_mask_decoder(folder: Path) -> Path | None:
    """The mask decoder in a model's folder, such as the one of `demo`; None without one."""
    file = folder / MASK_DECODER
    return file if file.is_file() else None


def find_local(name: str, revision: str | None = None) -> Checkpoint | None:
    """The files of a model that is complete on this machine, else None. Nothing is downloaded.

    Raises ModelUnavailable for a name that neither a folder nor a repository can have.
    """
    if folder_of(name) is not None:
        return find(name, revision)
    from pgcli.checkpoints import hub

    cached = hub.cached_snapshot(name, revision or "main", kind="model")
    return None if cached is None else Checkpoint(name, cached, cached.name)


def find_model_config(name: str, revision: str | None, *, download: bool) -> Path | None:
    """The folder with a model's `config.json`, the one file that may be downloaded; None without.

    Raises ModelUnavailable.
    """
    if (checkpoint := find_local(name, revision)) is not None:
        return checkpoint.folder
    if not download:
        return None
    from pgcli.checkpoints import hub

    return hub.config_folder(name, revision)


def cached_models() -> list[str]:
    """The sorted names of the models in the cache of the Hub, of types that are supported."""
    from huggingface_hub import constants, errors, scan_cache_dir

    names = set()
    # shell completion cannot report errors
    with suppress(OSError, ValueError, errors.CacheNotFound):
        for repository in scan_cache_dir(constants.HF_HUB_CACHE).repos:
            for revision in repository.revisions:
                config = read_json(revision.snapshot_path / "config.json") or {}
                if config.get("model_type") in MODEL_TYPES:
                    names.add(repository.repo_id)
    return sorted(names)


def folder_of(name: str, kind: CheckpointKind = "model") -> Path | None:
    """The folder with this name, or None for a name on the Hub. Nothing is downloaded.

    Raises ModelUnavailable for a name that is neither.
    """
    if kind == "model" and name in builtin_models():
        return builtin_models()[name]
    folder = os.path.expanduser(name)  # noqa: PTH111 - Path raises for an unknown user,
    if is_readable_folder(folder):  # and for a name too long for the disk
        return Path(folder)
    if not HUB_NAME.fullmatch(name) or (kind == "model" and names_file(name)):
        raise _no_name(name, kind)
    return None


def is_readable_folder(path: str) -> bool:
    """Whether the path is a folder. Raises ModelUnavailable for an unreadable one."""
    try:
        os.stat(f"{path}/.")  # noqa: PTH116 - may it be entered?
        os.scandir(path).close()
    except PermissionError as error:
        raise ModelUnavailable(
            f"the model folder {path} cannot be read: {error.strerror}",
            hint=f"change the permissions of the folder or of its parents: ls -ld {path}",
        ) from error
    except (OSError, ValueError):
        return False
    return True


@cache
def file_digest(file: Path) -> str:
    """The first digits of the file's SHA-256, enough to distinguish files. It is read once."""
    return sha256(file)[:REVISION_LENGTH]


def names_file(name: str) -> bool:
    """Whether the name refers to a file, not to a folder."""
    return os.path.isfile(name)  # noqa: PTH113 - Path raises for a NUL


def _no_name(name: str, kind: CheckpointKind) -> ModelUnavailable:
    if kind == "model" and names_file(name):
        return ModelUnavailable(
            f"{name} is a file, but a model is a folder with config.json and safetensors files",
            hint=f"name its folder: <--model {shlex.quote(str(Path(name).parent))}>"
            if name.endswith(".safetensors")
            else "name a checkpoint in the Hugging Face layout, such as "
            "google/paligemma2-3b-mix-224, which has the weights of big_vision's .npz files",
        )
    if kind == "adapter":
        hint = "name a folder with adapter_config.json, or a Hub name such as you/your-adapter"
    else:
        close = get_close_matches(name.lower(), builtin_models(), n=1)
        hint = (
            f"{f'did you mean {close[0]}? ' if close else ''}name a folder with config.json, a Hub "
            f"name such as google/paligemma2-3b-mix-224, {DEMO} or {DEMO_TOWERS}"
        )
    return ModelUnavailable(
        f"there is no {kind} folder {name!r}, and it is not a Hub name either", hint=hint
    )
