"""The settings of a run that are saved with its output: what its rows depend on, and metadata."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pgcli
from pgcli import __version__
from pgcli.checkpoints.file_digests import digests, folder_digest
from pgcli.checkpoints.find import DEMO, DIGEST_LENGTH, builtin_models, folder_of
from pgcli.cli.job.plan import Plan, check_current_folder
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

#: The libraries whose versions may change an answer, and the parts of pgcli whose code may.
VERSIONED = ("torch", "pillow", "tokenizers", "numpy")
MODEL_CODE = (
    *("checkpoints", "device", "engine", "images", "model", "tasks"),
    *("box_filter.py", "parsing.py", "regions.py", "rle.py"),
)
#: The setting of an adapter's folder, which the records of older runs lack.
ADAPTER_FILES = "adapter_files"


def run_settings(plan: Plan) -> dict[str, object]:
    """The question and the settings that rows depend on, by name, except those of the model."""
    question, folder = plan.question, check_current_folder()
    return {
        "sources": [encodable(absolute_source(name, folder)) for name in plan.sources],
        "command": question.task,
        "prompts": question.templates,
        "max_new_tokens": question.max_new_tokens,
        **option_settings(plan.options, question, plan.mask_decoder),
    }


def option_settings(
    options: Options, question: Question, mask_decoder: str | None = None
) -> dict[str, object]:
    """The settings that have a default."""
    settings = {
        "adapter": file_settings(options.model.adapter, "adapter_model.safetensors"),
        ADAPTER_FILES: adapter_digest(options.model.adapter),
        "mask_decoder": file_settings(mask_decoder),
        "quantize": options.model.quantize,
        **sampling_settings(options.answering),
        **question_settings(question),
        **input_settings(options.input),
        "no_timing": options.output.no_timing,
    }
    if options.output.rows_per_file is not None:
        settings[ROWS_PER_FILE] = options.output.rows_per_file
    return settings


def sampling_settings(options: AnsweringOptions) -> dict[str, object]:
    """How tokens are sampled."""
    return {
        "temperature": options.temperature,
        "top_p": options.top_p,
        "top_k": options.top_k,
        "seed": options.seed,
    }


def question_settings(question: Question) -> dict[str, object]:
    """What is asked beside the prompts."""
    return {
        "alternatives": question.alternatives,
        "token_logprobs": question.token_logprobs,
        "region": question.region,
        "objects": question.objects,
        "strict": question.strict,
        "min_score": question.box_filter.min_score,
        "min_confidence": question.box_filter.min_confidence,
        "nms": question.box_filter.nms,
        "choices": question.choices,
        "choices_column": question.choices_column,
    }


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


def model_settings(plan: Plan, engine: InferenceEngine) -> dict[str, object]:
    """The settings that are known once the model is loaded.

    A model folder has a digest of its files; other models have the revision in their label.
    """
    folder = folder_of(plan.options.model.model or DEMO)
    has_revision = folder is None or folder in builtin_models().values()
    checkpoint = None if folder is None or has_revision else folder_digest(folder)
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

    running = plan.options.running
    adapter_files = {ADAPTER_FILES: adapter_digest(plan.options.model.adapter)}
    images = StampComparison(plan.image_limits, reads_all=running.verify_input)
    return ResumeRules(
        lambda metadata: default_settings(metadata) | adapter_files,
        is_moved=running.moved,
        images=images,
    )


def default_settings(metadata: Mapping[str, Any]) -> dict[str, object]:
    """The settings of a run without options, which the record of an older run may lack.

    Its sources are in its metadata, relative to its folder.
    """
    options = Options(
        InputOptions(), OutputOptions(), ModelOptions(), AnsweringOptions(), RunningOptions()
    )
    settings = plain(option_settings(options, Question("caption", None, 0)))
    sources, folder = metadata.get("sources"), metadata.get("folder")
    if isinstance(sources, list) and isinstance(folder, str):
        settings["sources"] = [absolute_source(str(source), folder) for source in sources]
    return settings


def file_settings(name: str | None, within: str = "") -> dict[str, str | None] | None:
    """The name of a file, or of one within a folder, as the user gave it, and its digest."""
    if name is None:
        return None
    file = Path(name).expanduser() / within
    sha256 = digests([file])[0][:DIGEST_LENGTH] if file.is_file() else None
    return {"name": encodable(name), "sha256": sha256}


def adapter_digest(name: str | None) -> str | None:
    """The digest of all files of an adapter's folder; None for one of the Hub."""
    folder = None if name is None else folder_of(name, "adapter")
    return None if folder is None else folder_digest(folder)
