"""What the rows of a run depend on, for the output's own record of how it was made."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from pgcli import __version__
from pgcli.checkpoints.find import digest
from pgcli.cli.plan import Plan
from pgcli.printable import encodable

if TYPE_CHECKING:
    from pgcli.engine.engine import Engine

#: The libraries that an answer may depend on.
VERSIONED = ("torch", "pillow", "tokenizers", "numpy")


def settings_of(plan: Plan, engine: Engine) -> dict[str, object]:
    """The model, the question and every setting that an answer may depend on, by name."""
    chosen = plan.options.answering
    return {
        "command": plan.question.task,
        "sources": [encodable(name) for name in plan.names],
        "prompts": plan.question.templates,
        "model": engine.label,
        "adapter": told_of_file(plan.options.model.adapter, "adapter_model.safetensors"),
        "mask_decoder": told_of_file(plan.mask_decoder),
        "device": engine.device,
        "dtype": engine.dtype,
        "quantize": plan.options.model.quantize,
        "batch_size": engine.batch_size,
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
        "limit": plan.options.input.limit,
        "max_pixels": plan.options.input.max_pixels,
        "fast_decode": plan.options.input.fast_decode,
        "versions": {"pgcli": __version__, **{name: version(name) for name in VERSIONED}},
    }


def told_of_file(name: str | None, within: str = "") -> dict[str, str | None] | None:
    """A file, or one within a folder, as the user named it, and a digest of what is in it."""
    if name is None:
        return None
    file = Path(name).expanduser() / within
    return {"name": encodable(name), "sha256": digest(file) if file.is_file() else None}
