"""The fingerprint of a run: the question, options and model files that its rows depend on."""

from __future__ import annotations

from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgcli.checkpoints.files import digests, folder_digests
from pgcli.checkpoints.find import REVISION_LENGTH, builtin_models, find_local, folder_of
from pgcli.declare import options_of
from pgcli.inputs.paths import absolute_source, display_name, rebased
from pgcli.run.state.record import SOURCES, RunRecord, changed_source, plain_settings
from pgcli.run.task import model_name
from pgcli.text import encodable
from pgcli.version import __version__

if TYPE_CHECKING:
    from pgcli.run.request import RunRequest

#: Another version of these libraries may change an answer.
VERSIONED = ("torch", "pillow", "tokenizers", "numpy")


def run_settings(request: RunRequest) -> dict[str, Any]:
    """The settings that rows depend on, by name, without the model."""
    question = asdict(request.question)
    return plain_settings(
        {
            "sources": [
                encodable(absolute_source(name, request.input_folder)) for name in request.sources
            ],
            "command": question.pop("task"),
            "prompts": question.pop("templates", None),
            **fingerprint_values(request.input),
            **fingerprint_values(request.answering),
            **fingerprint_values(request.output),
            **question,
            "texts_file": file_setting(question.get("texts_file")),
            "mask_decoder": file_setting(request.mask_decoder),
            "quantize": request.model.quantize,
        }
    )


def input_settings(request: RunRequest) -> dict[str, Any]:
    """The values from which `reopen` makes the request of the run again."""
    options: dict[str, Any] = {}
    for record in (request.command, request.input, request.answering):
        values = {option: getattr(record, option.name) for option in options_of(type(record))}
        options |= {
            option.name: value for option, value in values.items() if value != option.default
        }
    return plain_settings(
        {
            "command": request.question.task,
            "sources": [display_name(name) for name in request.sources],
            "folder": encodable(request.input_folder),
            "options": options,
        }
    )


def fingerprint_values(record: Any) -> dict[str, Any]:
    """The values of the options that rows depend on, by name."""
    options = options_of(type(record))
    return {option.name: getattr(record, option.name) for option in options if option.affects_rows}


def resumed_request(request: RunRequest, record: RunRecord) -> RunRequest:
    """The request with sources and model named as in the first command of the run.

    So rows have the same names in whatever folder a run is resumed. Moved sources keep their new
    names.
    """
    names, folder = record.input.get("sources"), record.input.get("folder")
    known = known_model(request)
    is_named_by_files = known["adapter"] is None or known["adapter_files"] is not None
    if isinstance(known["checkpoint"], dict) and is_named_by_files:
        request = replace(request, model_label=str(record.model.get("model") or ""))
    now = run_settings(request)[SOURCES]
    if not (
        names and isinstance(names, list) and isinstance(folder, str) and Path(folder).is_dir()
    ):
        return request
    if len(names) > len(request.sources) or changed_source(record.settings.get(SOURCES), now):
        return request
    more = (rebased(name, request.folder, folder) for name in request.sources[len(names) :])
    return replace(request, sources=(*names, *more), sources_folder=folder)


def file_setting(name: str | None) -> dict[str, str | None] | None:
    """The name, without its folder, and the digest of a file that rows depend on."""
    if name is None:
        return None
    file = Path(name).expanduser()
    digest = digests([file])[0][:REVISION_LENGTH] if file.is_file() else None
    return {"name": encodable(file.name), "sha256": digest}


def versions() -> dict[str, str]:
    """The versions of pgcli and of the libraries that answers depend on, by name."""
    return {"pgcli": __version__, **{name: version(name) for name in VERSIONED}}


def known_model(request: RunRequest) -> dict[str, Any]:
    """What identifies the model and its adapter, if their files are on this machine.

    Hub models and built-in models are identified by name and revision, folders by the digests of
    their files, which are cached.
    """
    options = request.model
    checkpoint: dict[str, str] | str | None = None
    adapter_files = None
    folder = folder_of(model_name(request))
    if folder is not None and folder not in builtin_models().values():
        checkpoint = folder_digests(folder)
    elif local := find_local(model_name(request), options.revision):
        checkpoint = local.label
    if options.adapter is not None and (folder := folder_of(options.adapter, "adapter")):
        adapter_files = folder_digests(folder)
    return {
        "checkpoint": checkpoint,
        "adapter": None if options.adapter is None else encodable(options.adapter),
        "adapter_files": adapter_files,
        "dtype_option": options.dtype,
    }


def loaded_model(request: RunRequest, label: str, dtype: str, dim: int | None) -> dict[str, Any]:
    """The facts about a loaded model for the record."""
    return known_model(request) | {"model": label, "dtype": dtype, "embedding_dim": dim}


def check_known_model(request: RunRequest, record: RunRecord, output: str) -> None:
    """Raise OutputExists if another model made the saved rows.

    The model is neither loaded nor downloaded.
    """
    model = known_model(request)
    option = model.pop("dtype_option")
    if option != record.model.get("dtype_option"):
        model["dtype_option" if option == "auto" else "dtype"] = option
    is_known = {name: value for name, value in model.items() if value is not None}
    record.check_model(is_known | {"adapter": model["adapter"]}, output)
