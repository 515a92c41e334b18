"""What the rows of a run depend on, for the output's own record of how it was made."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from pgcli import __version__
from pgcli.checkpoints.find import BUILTIN, DEMO, digest, folder_of
from pgcli.checkpoints.identity import folder_digest
from pgcli.cli.job.plan import Plan
from pgcli.printable import encodable
from pgcli.remote.urls import without_credentials

if TYPE_CHECKING:
    from pgcli.engine.engine import Engine

#: The libraries that an answer may depend on.
VERSIONED = ("torch", "pillow", "tokenizers", "numpy")


def settings_of(plan: Plan) -> dict[str, object]:
    """The question and every setting that a row may depend on, by name, but for the model's own."""
    options, chosen = plan.options, plan.options.answering
    return {
        "command": plan.question.task,
        "prompts": plan.question.templates,
        "adapter": told_of_file(options.model.adapter, "adapter_model.safetensors"),
        "mask_decoder": told_of_file(plan.mask_decoder),
        "quantize": options.model.quantize,
        "max_new_tokens": plan.question.max_new_tokens,
        "temperature": chosen.temperature,
        "top_p": chosen.top_p,
        "top_k": chosen.top_k,
        "seed": chosen.seed,
        "region": plan.question.region,
        "objects": plan.question.objects,
        "strict": plan.question.strict,
        "choices": plan.question.choices,
        "choices_column": plan.question.choices_column,
        "columns": [
            options.input.image_column,
            options.input.id_column,
            options.input.prompt_column,
        ],
        "keep": options.input.keep,
        "no_timing": options.output.no_timing,
        "sample": options.input.sample,
        "max_pixels": options.input.max_pixels,
        "fast_decode": options.input.fast_decode,
    }


def settings_of_model(plan: Plan, engine: Engine) -> dict[str, object]:
    """What rows depend on and only the loaded model tells; what a folder holds, by its digest.

    The Hub's models and the built-in one have a revision in their names.
    """
    folder = folder_of(plan.options.model.model or DEMO)
    checkpoint = None if folder is None or folder == BUILTIN else folder_digest(folder)
    return {"model": engine.label, "checkpoint": checkpoint, "dtype": engine.dtype}


def run_metadata(plan: Plan, engine: Engine) -> dict[str, object]:
    """What rows do not depend on, or should not: where and when and from what they were made."""
    return {
        "sources": [encodable(without_credentials(name)) for name in plan.names],
        "device": engine.device,
        "batch_size": engine.batch_size,
        "limit": plan.options.input.limit,
        "allow_outside_root": plan.options.input.allow_outside_root,
        "allow_urls": plan.options.input.allow_urls,
        "allow_private_hosts": plan.options.input.allow_private_hosts,
        "versions": {"pgcli": __version__, **{name: version(name) for name in VERSIONED}},
        "arguments": [encodable(without_credentials(word)) for word in sys.argv[1:]],
        "folder": encodable(os.getcwd()),  # noqa: PTH109 - Path raises where it is gone, too
    }


def told_of_file(name: str | None, within: str = "") -> dict[str, str | None] | None:
    """A file, or one within a folder, as the user named it, and a digest of what is in it."""
    if name is None:
        return None
    file = Path(name).expanduser() / within
    return {"name": encodable(name), "sha256": digest(file) if file.is_file() else None}
