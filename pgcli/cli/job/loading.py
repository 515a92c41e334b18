"""The model of a run: found, downloaded if needed, and loaded."""

from __future__ import annotations

from pgcli.checkpoints.find import Checkpoint, find
from pgcli.cli.find_model import warn_unused_gpu
from pgcli.cli.job.plan import Plan
from pgcli.cli.job.run_task import RunEngine
from pgcli.cli.ui.console import Screen
from pgcli.cli.ui.downloads import Downloads


def find_model(plan: Plan, screen: Screen) -> Checkpoint:
    """The checkpoint of the plan's model, downloaded if needed."""
    return find(plan.model, plan.options.model.revision, progress=Downloads(screen))


def load_model(plan: Plan, screen: Screen, checkpoint: Checkpoint) -> RunEngine:
    """Load the plan's model from its checkpoint."""
    options, adapter = plan.options.model, None
    if options.adapter is not None:
        adapter = find(options.adapter, kind="adapter", progress=Downloads(screen))
    with screen.status(f"loading {checkpoint.name}"):
        engine = plan.task.load(checkpoint, adapter, options)
    if options.device == "auto" and str(engine.device) == "cpu":
        warn_unused_gpu(screen)
    return engine
