"""Finds the files of the model that a command names, and shows its download."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any

from pgcli.checkpoints.find import DEMO, Checkpoint, find
from pgcli.cli.options import CliCall
from pgcli.cli.ui.console import Screen
from pgcli.cli.ui.downloads import Downloads
from pgcli.errors import UsageError
from pgcli.run.request.applies import is_on_hub


def find_model(call: CliCall, name: str, screen: Screen) -> Checkpoint:
    """The files of the model at the revision of the call, downloaded if necessary.

    Raises UsageError, ModelUnavailable and InvalidCheckpoint.
    """
    revision = revision_of(name, call.values, call.typed)
    return find(name, revision, progress=Downloads(screen))


def default_model(command: str | None = None) -> str:
    """The model of PGCLI_MODEL, if it can answer the command, where one is named; or else demo."""
    from pgcli.run.request.make import is_able

    model = os.environ.get("PGCLI_MODEL")
    return model if model and (command is None or is_able(command, model)) else DEMO


def revision_of(name: str | None, values: Mapping[str, Any], typed: Collection[str]) -> str | None:
    """The revision of a model on the Hub; None for a model on this machine.

    Raises UsageError if it was typed for a local model; set elsewhere, it is for other models.
    """
    revision: str | None = values.get("revision")
    if revision is None or is_on_hub(name):
        return revision
    if "revision" in typed:
        raise UsageError(
            f"--revision does not apply to {name or 'the built-in model'}",
            hint="omit --revision, or name a model on the Hub",
        )
    return None


def warn_unused_gpu(screen: Screen) -> None:
    """Show why the CPU is used on a machine with a GPU, unless the user has hidden the GPU."""
    from pgcli.device.nvidia_driver import find_gpu_problem

    if (problem := find_gpu_problem()) and not problem.is_intentional:
        screen.info(f"the CPU is used, not the GPU: {problem.reason}", hint=problem.remedy)
