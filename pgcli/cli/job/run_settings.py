"""The settings of a run that are saved with its output: what its rows depend on, and metadata."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pgcli
from pgcli import __version__
from pgcli.checkpoints.find import BUILTIN, DEMO, digest, folder_of
from pgcli.checkpoints.identity import folder_digest
from pgcli.cli.job.plan import Plan
from pgcli.cli.options import (
    AnsweringOptions,
    InputOptions,
    ModelOptions,
    Options,
    OutputOptions,
    RunningOptions,
)
from pgcli.printable import encodable
from pgcli.remote.urls import without_credentials
from pgcli.sources.paths import absolute_source
from pgcli.state.run_record import ResumeRules, plain
from pgcli.state.shard import ROWS_PER_FILE
from pgcli.tasks import Question

if TYPE_CHECKING:
    from pgcli.engine.engine import InferenceEngine

#: The libraries whose versions may change an answer, and the folders of pgcli whose code may.
VERSIONED = ("torch", "pillow", "tokenizers", "numpy")
MODEL_CODE = ("engine", "images", "model")


def run_settings(plan: Plan) -> dict[str, object]:
    """The question and the settings that rows depend on, by name, except those of the model."""
    options, answering = plan.options, plan.options.answering
    given = {ROWS_PER_FILE: options.output.rows_per_file}
    folder = current_folder()
    return {
        "sources": [encodable(absolute_source(name, folder)) for name in plan.sources],
        "command": plan.question.task,
        "prompts": plan.question.templates,
        "adapter": file_settings(options.model.adapter, "adapter_model.safetensors"),
        "mask_decoder": file_settings(plan.mask_decoder),
        "quantize": options.model.quantize,
        "max_new_tokens": plan.question.max_new_tokens,
        "temperature": answering.temperature,
        "top_p": answering.top_p,
        "top_k": answering.top_k,
        "seed": answering.seed,
        "alternatives": plan.question.alternatives,
        "token_logprobs": plan.question.token_logprobs,
        "region": plan.question.region,
        "objects": plan.question.objects,
        "strict": plan.question.strict,
        "min_score": plan.question.box_filter.min_score,
        "min_confidence": plan.question.box_filter.min_confidence,
        "nms": plan.question.box_filter.nms,
        "choices": plan.question.choices,
        "choices_column": plan.question.choices_column,
        "columns": [
            options.input.image_column,
            options.input.id_column,
            options.input.prompt_column,
        ],
        "keep": options.input.keep,
        "include": [encodable(pattern) for pattern in options.input.names.include],
        "exclude": [encodable(pattern) for pattern in options.input.names.exclude],
        "no_timing": options.output.no_timing,
        "sample": options.input.sample,
        "max_pixels": options.input.max_pixels,
        "fast_decode": options.input.fast_decode,
        **{name: value for name, value in given.items() if value is not None},
    }


def model_settings(plan: Plan, engine: InferenceEngine) -> dict[str, object]:
    """The settings that are known once the model is loaded.

    A model folder has a digest of its files; other models have the revision in their label.
    """
    folder = folder_of(plan.options.model.model or DEMO)
    checkpoint = None if folder is None or folder == BUILTIN else folder_digest(folder)
    return {"model": engine.label, "checkpoint": checkpoint, "dtype": engine.dtype}


def run_metadata(plan: Plan, engine: InferenceEngine) -> dict[str, object]:
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
    combined = hashlib.sha256()
    for folder in MODEL_CODE:
        for file in sorted((Path(pgcli.__file__).parent / folder).rglob("*.py")):
            combined.update(file.read_bytes())
    return combined.hexdigest()[:12]


def input_metadata(plan: Plan) -> dict[str, object]:
    """The metadata that reopen the input."""
    options = plan.options.input
    return {
        "sources": [encodable(without_credentials(name)) for name in plan.sources],
        "folder": encodable(current_folder()),
        "limit": options.limit,
        "allow_outside_root": options.allow_outside_root,
        "allow_urls": options.allow_urls,
        "allow_private_hosts": options.allow_private_hosts,
    }


def resume_rules(plan: Plan) -> ResumeRules:
    """How the run is compared with one that it resumes."""
    from pgcli.images import StampComparison

    running = plan.options.running
    images = StampComparison(plan.image_limits, reads_all=running.verify_input)
    return ResumeRules(default_settings, is_moved=running.moved, images=images)


def default_settings(metadata: Mapping[str, Any]) -> dict[str, object]:
    """The settings of a run without options, which the record of an older run may lack.

    Its sources are in its metadata, relative to its folder.
    """
    options = Options(
        InputOptions(), OutputOptions(), ModelOptions(), AnsweringOptions(), RunningOptions()
    )
    settings = plain(run_settings(Plan(Question("caption", None, 0), (), options)))
    for name in ("command", "prompts", "max_new_tokens", "sources"):
        del settings[name]
    sources, folder = metadata.get("sources"), metadata.get("folder")
    if isinstance(sources, list) and isinstance(folder, str):
        settings["sources"] = [absolute_source(str(source), folder) for source in sources]
    return settings


def current_folder() -> str:
    return os.getcwd()  # noqa: PTH109 - Path.cwd makes the same call


def file_settings(name: str | None, within: str = "") -> dict[str, str | None] | None:
    """The name of a file, or of one within a folder, as the user gave it, and its digest."""
    if name is None:
        return None
    file = Path(name).expanduser() / within
    return {"name": encodable(name), "sha256": digest(file) if file.is_file() else None}
