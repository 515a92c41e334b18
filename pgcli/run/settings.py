"""What the rows of a run depend on: its question, its options, and the files of its model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgcli import __version__
from pgcli.checkpoints.file_digests import SUFFIXES, digests, folder_digest
from pgcli.checkpoints.find import DIGEST_LENGTH, builtin_models, find_local, folder_of
from pgcli.inputs.paths import absolute_source, display_name
from pgcli.printable import encodable
from pgcli.run.request.declare import fingerprint_values
from pgcli.run.state.record import RunRecord, plain
from pgcli.run.task import model_name

if TYPE_CHECKING:
    from pgcli.run.request import RunRequest

#: The libraries whose versions may change an answer.
VERSIONED = ("torch", "pillow", "tokenizers", "numpy")


def run_settings(request: RunRequest) -> dict[str, Any]:
    """The settings that rows depend on, by name, except those of the model."""
    question = asdict(request.question)
    question["texts_file"] = file_setting(question.get("texts_file"))
    settings = {
        "sources": [encodable(absolute_source(name, request.folder)) for name in request.sources],
        "command": question.pop("task"),
        "prompts": question.pop("templates", None),
        **{name: value for name, value in question.items() if value not in (None, (), False)},
        "mask_decoder": file_setting(request.mask_decoder),
    }
    for record in (request.input, request.answering, request.output):
        more = fingerprint_values(record)
        settings |= {name: value for name, value in more.items() if name not in settings}
    return plain({**settings, "quantize": request.model.quantize})


def input_settings(request: RunRequest) -> dict[str, Any]:
    """What reads the sources of a run again, for the commands on its rows."""
    return plain(
        {
            "sources": [display_name(name) for name in request.sources],
            "folder": encodable(request.folder),
            "question": asdict(request.question),
            **asdict(request.input),
        }
    )


def file_setting(name: str | None) -> dict[str, str | None] | None:
    """A file that rows depend on: its name as the user gave it, and its digest."""
    if name is None:
        return None
    file = Path(name).expanduser()
    digest = digests([file])[0][:DIGEST_LENGTH] if file.is_file() else None
    return {"name": encodable(name), "sha256": digest}


def versions() -> dict[str, str]:
    """The versions of pgcli and of the libraries that answers depend on, by name."""
    return {"pgcli": __version__, **{name: version(name) for name in VERSIONED}}


def model_files(request: RunRequest) -> dict[str, Any]:
    """The files of the model and of its adapter that are on this machine, without their content.

    A model of the Hub and a built-in one are known by name and revision, a folder by the names,
    sizes and times of its files.
    """
    options = request.model
    values: dict[str, Any] = {"name": encodable(model_name(request)), "dtype_option": options.dtype}
    folder = folder_of(model_name(request))
    if folder is None or folder in builtin_models().values():
        found = find_local(model_name(request), options.revision)
        values["model"] = None if found is None else found.label
    else:
        values["files"] = folder_files(folder)
    if options.adapter is not None:
        values["adapter"] = encodable(options.adapter)
        adapter = folder_of(options.adapter, "adapter")
        values["adapter_files"] = None if adapter is None else folder_files(adapter)
    return values


def loaded_model(request: RunRequest, label: str, dtype: str, dim: int | None) -> dict[str, Any]:
    """What is recorded of a loaded model: its files with a digest of their content."""
    values = model_files(request) | {"model": label, "dtype": dtype, "embedding_dim": dim}
    folder = folder_of(model_name(request))
    if "files" in values and folder is not None:
        values["checkpoint"] = folder_digest(folder)
    if values.get("adapter_files") is not None:
        adapter = folder_of(str(request.model.adapter), "adapter")
        values["adapter_digest"] = None if adapter is None else folder_digest(adapter)
    return values


def folder_files(folder: Path) -> dict[str, list[int]]:
    """Size and modification time of each file that answers depend on, by name."""
    files = sorted(file for file in folder.iterdir() if file.suffix in SUFFIXES and file.is_file())
    status = {encodable(file.name): file.stat() for file in files}
    return {name: [found.st_size, found.st_mtime_ns] for name, found in status.items()}


def check_model_files(request: RunRequest, record: RunRecord, output: str) -> None:
    """Raise OutputExists if the model of the request is not the one that made the saved rows.

    The model is not loaded: files of other sizes or times are compared by their digest.
    """
    recorded, values = record.model, model_files(request)
    if not recorded:
        return
    compared: dict[str, Any] = {"adapter": values.get("adapter")}
    if values.get("model") is not None and request.model.adapter is None:
        compared["model"] = values["model"]
    elif "files" not in recorded and "files" in values:
        compared["name"] = values["name"]  # a folder in place of a model of the Hub
    names = {"files": "checkpoint", "adapter_files": "adapter_digest"}
    for files, digest in names.items():
        if values.get(files) is not None and values[files] != recorded.get(files):
            name = model_name(request) if files == "files" else str(request.model.adapter)
            folder = folder_of(name, "model" if files == "files" else "adapter")
            compared[digest] = None if folder is None else folder_digest(folder)
    compared |= compared_dtype(values["dtype_option"], recorded)
    known = {**recorded, "adapter": recorded.get("adapter")}
    RunRecord("", {}, model=known).check_model(compared, output)


def compared_dtype(option: str, recorded: Mapping[str, Any]) -> dict[str, Any]:
    """The dtype that a request would run in, where it could be another than before."""
    if option == recorded.get("dtype_option"):
        return {}
    if option == "auto":
        return {"dtype_option": "auto"}
    return {"dtype": option}
