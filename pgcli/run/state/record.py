"""`run.json`: the fingerprint of a run, and the facts about it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgcli.checkpoints.files import digests, folder_digests
from pgcli.checkpoints.find import REVISION_LENGTH, builtin_models, find_local, folder_of
from pgcli.declare import options_of
from pgcli.errors import OutputExists
from pgcli.inputs.paths import absolute_source, display_name, rebased
from pgcli.output import reader
from pgcli.stores import Store
from pgcli.stores.files import parse_path
from pgcli.stores.urls import url_scheme
from pgcli.text import encodable, json_object, listed, shown
from pgcli.version import __version__

if TYPE_CHECKING:
    from pgcli.run.request import RunRequest

RUN = "run.json"
VERSION = 4
SOURCES = "sources"  # the setting that may grow, and that changes if a data set is moved
FILES = ("checkpoint", "adapter_files")  # digests by file name for a folder
WAYS_OUT = "run the command that made it, choose another <-o>, or replace it with <--overwrite>"

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class RunRecord:
    """The record of a run.

    Rows depend on the `settings` and the `model` (its files and dtype; empty before it is loaded).
    The values in `input` read the sources again. A folder has `file_rows` in each file. `begun` is
    the time of the first row.
    """

    run_id: str
    settings: Settings
    input: Settings = field(default_factory=dict)
    model: Settings = field(default_factory=dict)
    file_rows: int = 0
    begun: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """The content of `run.json`."""
        values = {"version": VERSION, **asdict(self)}
        return json.dumps(values, indent=1, default=str).encode() + b"\n"

    def check_settings(self, settings: Settings, output: str) -> None:
        """Raise OutputExists if the run has other settings; sources are not compared."""
        if changes := differences(self.settings, settings):
            raise other_run(output, "other settings", changes)

    def moved_sources(self, settings: Settings) -> str:
        """`old -> new` for the first moved source; else empty."""
        return changed_source(self.settings.get(SOURCES), plain_settings(settings).get(SOURCES))

    def check_model(self, model: Settings, output: str) -> None:
        """Raise OutputExists if another model, or the model in another dtype, made the rows."""
        known = {name: value for name, value in model.items() if name in self.model}
        if known.get("adapter_files") and self.model["adapter_files"]:
            known.pop("adapter", None)  # its files identify it better than its name
        if changes := differences(self.model, known):
            raise other_run(output, "another model", changes)


def read_record(store: Store) -> RunRecord | None:
    """The record in a state folder; None if it is missing or invalid."""
    values = json_object(store.read(RUN))
    if values is None or values.pop("version", None) != VERSION:
        return None
    try:
        record = RunRecord(**values)
    except TypeError:
        return None
    kinds: dict[str, type] = {"run_id": str, "settings": dict, "input": dict, "model": dict}
    kinds |= {"file_rows": int, "begun": str, "versions": dict}
    is_valid = all(isinstance(getattr(record, name), kind) for name, kind in kinds.items())
    return record if is_valid and record.file_rows > 0 else None


def other_run(
    output: object, what: str, changes: Sequence[str], *, hint: str = WAYS_OUT
) -> OutputExists:
    """The error for an output or a training folder of a run with other settings, for example."""
    return OutputExists(f"{output} belongs to a run with {what}: {'; '.join(changes)}", hint=hint)


def why_no_record(store: Store) -> str:
    """Why `read_record` returns None, as a clause of a message."""
    data, file = store.read(RUN), f"{store.url.rstrip('/')}/{RUN}"
    if data is None:
        return f"there is no {file}"
    version = (json_object(data) or {}).get("version")
    is_newer = isinstance(version, int) and version > VERSION
    reason = "was made by a newer pgcli" if is_newer else "is not a record of a run"
    return f"{file} {reason}"


def state_lacks(store: Store, name: str, *, hint: str = WAYS_OUT) -> OutputExists:
    """The error for a state that lacks one of its files."""
    file = f"{store.url.rstrip('/')}/{name}"
    return OutputExists(f"{file} is missing or damaged", hint=hint)


def plain_settings(settings: Settings) -> dict[str, Any]:
    """The settings as JSON returns them: tuples as lists, other objects as text."""
    values: dict[str, Any] = json.loads(json.dumps(dict(settings), default=str))
    return values


def differences(old: Settings, new: Settings) -> list[str]:
    """`name: old -> new` for each different setting except the sources.

    For the files of a folder, the names of different files.
    """
    old, new = plain_settings(old), plain_settings(new)
    return [
        setting_difference(name, old.get(name), value)
        for name, value in new.items()
        if old.get(name) != value and name != SOURCES
    ]


def setting_difference(name: str, old: Any, new: Any) -> str:
    """How a setting differs."""
    if name not in FILES or not (isinstance(old, dict) or isinstance(new, dict)):
        return f"{name}: {shown(old)} -> {shown(new)}"
    if isinstance(old, dict) and isinstance(new, dict):
        files = [file for file in sorted({**old, **new}) if old.get(file) != new.get(file)]
        return f"{name}: {listed(files)} differ{'s' * (len(files) == 1)}"
    old, new = ("a folder" if isinstance(value, dict) else shown(value) for value in (old, new))
    return f"{name}: {old} -> {new}"


def changed_source(old: Any, new: Sequence[str] | None) -> str:
    """`old -> new` for the first changed source; empty if sources were only added at the end."""
    for number, before in enumerate(old if isinstance(old, list | tuple) else ()):
        now = new[number] if new is not None and number < len(new) else "nothing"
        if before != now and not is_same_place(before, now):
            return f"{before} -> {now}"
    return ""


def is_same_place(before: str, now: str) -> bool:
    """Whether two absolute names of sources are the same local path, by a link."""
    if url_scheme(before) or url_scheme(now) or "-" in (before, now):
        return False
    return os.path.realpath(parse_path(before)) == os.path.realpath(parse_path(now))


def now() -> str:
    """The time, to the second, with its zone."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


def state_location(output: str) -> str:
    """The state folder of an output at a path or a URL: `OUTPUT.pgcli`, beside it."""
    is_url = "://" in output
    return f"{output.rstrip('/')}.pgcli/" if is_url else str(reader.state_folder(Path(output)))


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
            "instructed": request.instructed,
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
    folder = folder_of(request.model_name)
    if folder is not None and folder not in builtin_models().values():
        checkpoint = folder_digests(folder)
    elif local := find_local(request.model_name, options.revision):
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
