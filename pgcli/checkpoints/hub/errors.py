"""Turns errors of the Hub's client into one line each, with a hint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from huggingface_hub import constants, get_token
from huggingface_hub import errors as hub

from pgcli.checkpoints.hub import login
from pgcli.errors import ModelUnavailable
from pgcli.printable import first_line

#: The base class of the HTTP errors, whichever HTTP library the client uses.
TRANSPORT_ERROR: Any = hub.HfHubHTTPError.__bases__[0]


def unavailable(name: str, revision: str, error: Exception) -> ModelUnavailable:
    """The error for an exception that the client raised while listing or downloading."""
    page = f"{constants.ENDPOINT}/{name}"
    if isinstance(error, hub.LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    if isinstance(error, hub.GatedRepoError):  # before its parent, RepositoryNotFoundError
        return _gated(name, page)
    if isinstance(error, hub.RevisionNotFoundError):
        return no_revision(name, revision)
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
    if isinstance(error, hub.EntryNotFoundError) and isinstance(error, hub.HfHubHTTPError):
        return ModelUnavailable(
            f"{name} could not be downloaded: {constants.ENDPOINT} lists a file and does not have "
            f"it, {_file(error)}",
            hint=f"choose another --revision; the model's page is {page}",
        )
    if isinstance(error, hub.HfHubHTTPError):
        return _answered(name, page, error)
    if isinstance(error, hub.LocalEntryNotFoundError | ConnectionError | TRANSPORT_ERROR):
        return _unreachable(name, error)
    if isinstance(error, OSError) and error.errno:
        return ModelUnavailable(
            f"{name} could not be stored in {constants.HF_HUB_CACHE}: {error.strerror}",
            hint="free space there, or set HF_HOME to a folder on a larger disk",
        )
    return ModelUnavailable(
        f"{name} could not be downloaded: {first_line(error)}",
        hint=f"try again: complete files are kept. The model's page is {page}",
    )


def offline(name: str) -> ModelUnavailable:
    """The error for an incomplete cached model while downloads are forbidden."""
    folder = name.rpartition("/")[2]
    return ModelUnavailable(
        f"{name} is not in the cache as a whole, and HF_HUB_OFFLINE forbids downloading it",
        hint="`unset HF_HUB_OFFLINE`; or where there is a network `hf download "
        f"{name} --local-dir {folder}`, bring that folder here, and name it: --model {folder}",
    )


def no_revision(name: str, revision: str) -> ModelUnavailable:
    """The error for a revision that the repository does not have."""
    return ModelUnavailable(
        f"{name} has no revision {revision!r}",
        hint=f"see {constants.ENDPOINT}/{name}/commits/main",
    )


def no_space(name: str, missing: int, free: int) -> ModelUnavailable:
    """The error for a disk that is too small, raised before the download."""
    return ModelUnavailable(
        f"{name} needs {_size(missing)} more on disk, and {constants.HF_HUB_CACHE} has "
        f"{_size(free)} free",
        hint="free space there, or set HF_HOME to a folder on a larger disk",
    )


def reason(error: BaseException) -> str:
    """The status of an answer, or the first line of any other error."""
    if isinstance(error, hub.HfHubHTTPError):
        return f"{error.response.status_code} {error.response.reason_phrase}".strip()
    return first_line(error)


def _gated(name: str, page: str) -> ModelUnavailable:
    said, instead = f"{name} needs its licence accepted", "; or name a local folder: --model DIR"
    found, variable = (
        login.environment_token(),
        login.overriding_variable(Path(constants.HF_TOKEN_PATH)),
    )
    if variable:
        return ModelUnavailable(
            f"{said} by the user whose token is in {variable}, which hides that of `hf auth login`",
            hint=f"`unset {variable}` if the other user has accepted it; else open {page} and "
            f"accept it as the user that `hf auth whoami` names{instead}",
        )
    if get_token():
        source = found[1] if found else "that of `hf auth login`"
        return ModelUnavailable(
            f"{said} by the user whose token is set on this machine ({source})",
            hint=f"open {page} and accept it as the user that `hf auth whoami` names{instead}",
        )
    return ModelUnavailable(
        f"{said}, and no token is set on this machine",
        hint=f"open {page} and accept the licence, then `hf auth login`{instead}",
    )


def _invalid_token() -> str:
    """The hint for a token that the Hub does not accept."""
    if variable := login.overriding_variable(Path(constants.HF_TOKEN_PATH)):
        return (
            f"the token in {variable} is not valid, and hides that of `hf auth login`: "
            f"`unset {variable}`"
        )
    if found := login.environment_token():
        return f"the token in {found[1]} is not valid: `unset {found[1]}`, then `hf auth login`"
    return "the token of `hf auth login` is not valid: `hf auth login --force` with a new one"


def _answered(name: str, page: str, error: hub.HfHubHTTPError) -> ModelUnavailable:
    """The error for any other HTTP status."""
    status = error.response.status_code
    hint = f"try again: complete files are kept. The model's page is {page}"
    if status == 401:
        hint = _invalid_token()
    elif status == 403:
        hint = f"see {page}; a fine-grained token needs the right to read this repository"
    elif status == 407:
        hint = "the proxy asks for a login: write it into HTTPS_PROXY"
    elif status == 429:
        hint = "wait some minutes; with a token (`hf auth login`) the Hub allows more"
    return ModelUnavailable(f"{name} could not be downloaded: {reason(error)}", hint=hint)


def _unreachable(name: str, error: BaseException) -> ModelUnavailable:
    said = reason(error)
    hint = (
        "check the network and run the same command again: complete files are kept; or "
        "name a local folder: --model DIR"
    )
    if "CERTIFICATE_VERIFY_FAILED" in said:
        hint = (
            "behind a proxy that opens encrypted traffic, set SSL_CERT_FILE to its certificate; "
            "check the clock too"
        )
    elif type(error).__name__ == "ProxyError":
        hint = "check HTTPS_PROXY: the proxy's address, and a login where it asks for one"
    elif not constants.ENDPOINT.startswith(("http://", "https://")):
        hint = "HF_ENDPOINT is not the address of a Hub: unset it for https://huggingface.co"
    return ModelUnavailable(
        f"{name} is not in the cache as a whole, and {constants.ENDPOINT} does not serve it: "
        f"{said}",
        hint=hint,
    )


def _file(error: hub.HfHubHTTPError) -> str:
    return error.response.request.url.path.rpartition("/")[2]


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
