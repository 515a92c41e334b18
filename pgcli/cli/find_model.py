"""Finds the files of the model that a command names, and shows its download."""

from __future__ import annotations

from pathlib import Path

from pgcli.checkpoints.find import Checkpoint, builtin_models, find
from pgcli.cli.ui.console import Screen
from pgcli.errors import UsageError


def find_model(name: str, revision: str | None, screen: Screen) -> Checkpoint:
    """The files of the model, downloaded where they are missing.

    Raises UsageError, ModelUnavailable and InvalidCheckpoint.
    """
    from pgcli.cli.ui.downloads import Downloads

    check_revision(name, revision)
    return find(name, revision, progress=Downloads(screen))


def check_revision(name: str, revision: str | None) -> None:
    """Raise UsageError for a revision of a model on this machine, which has none."""
    if revision and (name in builtin_models() or Path(name).expanduser().is_dir()):
        raise UsageError(
            f"{name} has no revisions to choose from", hint="--revision goes with a name on the Hub"
        )


def warn_unused_gpu(screen: Screen) -> None:
    """Show why the CPU is used on a machine with a GPU, unless the user has hidden the GPU."""
    from pgcli.device.nvidia_driver import find_gpu_problem

    if (problem := find_gpu_problem()) and not problem.is_intentional:
        screen.info(f"the CPU is used, not the GPU: {problem.found}", hint=problem.remedy)
