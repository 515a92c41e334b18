"""A folder, a Hub name or `demo` -> a checkpoint's files on disk."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pgcli.errors import ModelUnavailable

DEMO = "demo"
BUILTIN = Path(__file__).parent.parent / "builtin"
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
# nothing else of a repository is downloaded or read; in particular no pickles and no code
NEEDED = [
    "config.json",
    "*.safetensors",
    "*.safetensors.index.json",
    "tokenizer.json",
    "preprocessor_config.json",
    "processor_config.json",
]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint on disk: its name as the user typed it, and its revision where it has one."""

    name: str
    folder: Path
    revision: str | None = None

    @property
    def label(self) -> str:
        """What the rows' `model` column says."""
        return f"{self.name}@{self.revision}" if self.revision else self.name


def find(name: str, revision: str | None = None) -> Checkpoint:
    """The files of a model named by folder, by Hub name, or `demo`; downloads what is missing.

    An existing folder wins over a Hub name of the same spelling. Raises ModelUnavailable with the
    remedy: licence not accepted, no token, offline and not cached, unknown name or revision.
    """
    if name == DEMO:
        return Checkpoint(DEMO, BUILTIN, _digest(BUILTIN / "model.safetensors"))
    folder = os.path.expanduser(name)  # noqa: PTH111 - Path raises for an unknown user,
    if os.path.isdir(folder):  # noqa: PTH112 - and for a name too long for the disk
        return Checkpoint(name, Path(folder))
    if not HUB_NAME.fullmatch(name):
        raise ModelUnavailable(
            f"there is no model folder {name!r}, and it is not a Hub name either",
            hint="name a folder with config.json, a Hub name such as "
            "google/paligemma-3b-mix-224, or demo",
        )
    return _from_hub(name, revision)


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()[:12]


def _from_hub(name: str, revision: str | None) -> Checkpoint:
    import huggingface_hub
    from huggingface_hub import errors as hub

    # whichever library the Hub's client calls with, its errors are not all OSErrors
    transport: tuple[Any, ...] = hub.HfHubHTTPError.__bases__
    try:
        folder = huggingface_hub.snapshot_download(name, revision=revision, allow_patterns=NEEDED)
    # its xet downloader says RuntimeError for a lost connection, a full disk and all else
    except (OSError, ValueError, RuntimeError, *transport) as error:
        raise _unavailable(name, revision, error) from error
    return Checkpoint(name, Path(folder), Path(folder).name)


def _unavailable(name: str, revision: str | None, error: Exception) -> ModelUnavailable:
    """The Hub's error in the user's terms, each with what mends it."""
    from huggingface_hub import constants
    from huggingface_hub import errors as hub

    page = f"{constants.ENDPOINT}/{name}"
    if isinstance(error, hub.GatedRepoError):  # before its parent, RepositoryNotFoundError
        return _gated(name, page)
    if isinstance(error, hub.RevisionNotFoundError):
        return ModelUnavailable(
            f"{name} has no revision {revision!r}", hint=f"see {page}/commits/main"
        )
    if isinstance(error, hub.RepositoryNotFoundError):
        return ModelUnavailable(
            f"the Hub has no model {name!r}, or it is private and the token does not open it",
            hint="check the spelling; for a private model `hf auth login`",
        )
    if isinstance(error, hub.HFValidationError):
        return ModelUnavailable(
            f"{name!r} is neither a folder nor a name that the Hub allows",
            hint="check the spelling",
        )
    if isinstance(error, hub.LocalEntryNotFoundError | ConnectionError):
        if constants.HF_HUB_OFFLINE:
            return ModelUnavailable(
                f"{name} is not in the cache as a whole, and HF_HUB_OFFLINE forbids downloading it",
                hint=f"unset HF_HUB_OFFLINE, or run `hf download {name}` where there is a network",
            )
        return ModelUnavailable(
            f"{name} is not in the cache as a whole, and {constants.ENDPOINT} does not serve it: "
            + _first_line(error.__cause__ or error),
            hint="check the network and try again, or name a local folder: --model DIR",
        )
    if isinstance(error, OSError) and error.errno:
        return ModelUnavailable(
            f"{name} could not be stored in {constants.HF_HUB_CACHE}: {error.strerror}",
            hint="make room there, or set HF_HOME to a folder on a larger disk",
        )
    return ModelUnavailable(
        f"{name} could not be downloaded: {_first_line(error)}",
        hint=f"try again: what is there already is kept. The model's page is {page}",
    )


def _gated(name: str, page: str) -> ModelUnavailable:
    from huggingface_hub import get_token

    if get_token():
        return ModelUnavailable(
            f"{name} needs its licence accepted by the user whose token is set on this machine",
            hint=f"`hf auth whoami` names the user; as that user open {page} and accept it",
        )
    return ModelUnavailable(
        f"{name} needs its licence accepted, and no token is set on this machine",
        hint=f"open {page} and accept the licence, then `hf auth login`",
    )


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
