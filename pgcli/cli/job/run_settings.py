"""The settings of a run that are saved with its output: what its rows depend on, and metadata."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pgcli
from pgcli import __version__
from pgcli.checkpoints.file_digests import folder_digest
from pgcli.checkpoints.find import DIGEST_LENGTH, builtin_models, folder_of
from pgcli.cli.job.file_settings import file_settings
from pgcli.cli.job.plan import Plan, check_current_folder
from pgcli.cli.job.run_task import RunEngine
from pgcli.cli.options import (
    InputOptions,
    JobOptions,
    ModelOptions,
    OutputOptions,
    RunningOptions,
)
from pgcli.printable import encodable
from pgcli.remote.urls import without_credentials
from pgcli.sources.paths import absolute_source
from pgcli.state.run_record import ResumeRules, plain
from pgcli.state.shard import ROWS_PER_FILE

#: The libraries whose versions may change an answer, and the parts of pgcli whose code may.
VERSIONED = ("torch", "pillow", "tokenizers", "numpy")
MODEL_CODE = (
    *("checkpoints", "device", "embedding", "engine", "images", "model", "tasks"),
    *("box_filter.py", "parsing.py", "regions.py", "rle.py"),
)
#: The setting of an adapter's folder, which the records of older runs lack.
ADAPTER_FILES = "adapter_files"


def run_settings(plan: Plan) -> dict[str, object]:
    """The question and the settings that rows depend on, by name, except those of the model."""
    folder = check_current_folder()
    return {
        "sources": [encodable(absolute_source(name, folder)) for name in plan.sources],
        "command": plan.question.task,
        **plan.task.settings(),
        **option_settings(plan.options),
    }


def option_settings(options: JobOptions) -> dict[str, object]:
    """The settings that every task has."""
    settings = {
        "adapter": file_settings(options.model.adapter, "adapter_model.safetensors"),
        ADAPTER_FILES: adapter_digest(options.model.adapter),
        "quantize": options.model.quantize,
        **input_settings(options.input),
        "no_timing": options.output.no_timing,
    }
    if options.output.rows_per_file is not None:
        settings[ROWS_PER_FILE] = options.output.rows_per_file
    return settings


def input_settings(options: InputOptions) -> dict[str, object]:
    """Which images are read from the sources, and how."""
    return {
        "columns": [options.image_column, options.id_column, options.prompt_column],
        "keep": options.keep,
        "include": [encodable(pattern) for pattern in options.names.include],
        "exclude": [encodable(pattern) for pattern in options.names.exclude],
        "sample": options.sample,
        "max_pixels": options.max_pixels,
        "fast_decode": options.fast_decode,
    }


def model_settings(plan: Plan, engine: RunEngine) -> dict[str, object]:
    """The settings that are known once the model is loaded.

    A model folder has a digest of its files; other models have the revision in their label.
    """
    folder = folder_of(plan.model)
    has_revision = folder is None or folder in builtin_models().values()
    checkpoint = None if folder is None or has_revision else folder_digest(folder)
    names = {"model": engine.label, "checkpoint": checkpoint, "dtype": engine.dtype}
    return names | plan.task.model_settings(engine)


def run_metadata(plan: Plan, engine: RunEngine) -> dict[str, object]:
    """Metadata outside the fingerprint: the sources, the machine and the versions of a run."""
    return input_metadata(plan) | {
        "device": engine.device,
        "batch_size": engine.batch_size,
        "versions": versions(),
        "arguments": [encodable(without_credentials(word)) for word in plan.options.arguments],
    }


def versions() -> dict[str, str]:
    """The versions of pgcli and of the libraries that answers depend on, by name."""
    libraries = {name: version(name) for name in VERSIONED}
    return {"pgcli": __version__, **libraries, "model code": code_digest()}


def code_digest() -> str:
    """A digest of the code that computes answers: a version under development changes it too."""
    root = Path(pgcli.__file__).parent
    parts = [root / name for name in MODEL_CODE]
    combined = hashlib.sha256()
    for file in sorted(file for part in parts for file in (part, *part.rglob("*.py"))):
        if file.is_file():
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
            combined.update(f"{file.relative_to(root)} {digest}\n".encode())
    return combined.hexdigest()[:DIGEST_LENGTH]


def input_metadata(plan: Plan) -> dict[str, object]:
    """The metadata that reopen the input."""
    options = plan.options.input
    return {
        "sources": [encodable(without_credentials(name)) for name in plan.sources],
        "folder": encodable(check_current_folder()),
        "limit": options.limit,
        "allow_outside_root": options.allow_outside_root,
        "allow_urls": options.allow_urls,
        "allow_private_hosts": options.allow_private_hosts,
    }


def resume_rules(plan: Plan) -> ResumeRules:
    """How the run is compared with one that it resumes.

    An older run recorded only the weights of its adapter: the other files are taken to be the same.
    """
    from pgcli.images import StampComparison

    running, of_task = plan.options.running, plan.task.default_settings()
    adapter_files = {ADAPTER_FILES: adapter_digest(plan.options.model.adapter)}
    images = StampComparison(plan.image_limits, reads_all=running.verify_input)
    return ResumeRules(
        lambda metadata: default_settings(metadata, of_task) | adapter_files,
        is_moved=running.moved,
        images=images,
    )


def default_settings(
    metadata: Mapping[str, Any], of_task: Mapping[str, object]
) -> dict[str, object]:
    """The settings of a run without options, which the record of an older run may lack.

    Those of its task are given. Its sources are in its metadata, relative to its folder.
    """
    options = JobOptions(
        input=InputOptions(),
        output=OutputOptions(),
        model=ModelOptions(),
        running=RunningOptions(),
    )
    settings = plain({**of_task, **option_settings(options)})
    sources, folder = metadata.get("sources"), metadata.get("folder")
    if isinstance(sources, list) and isinstance(folder, str):
        settings["sources"] = [absolute_source(str(source), folder) for source in sources]
    return settings


def adapter_digest(name: str | None) -> str | None:
    """The digest of all files of an adapter's folder; None for one of the Hub."""
    folder = None if name is None else folder_of(name, "adapter")
    return None if folder is None else folder_digest(folder)
