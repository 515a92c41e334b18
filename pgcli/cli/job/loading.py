"""The model of a run: found, downloaded if needed, and loaded."""

from __future__ import annotations

from pgcli.checkpoints.find import Checkpoint, find
from pgcli.cli.find_model import warn_unused_gpu
from pgcli.cli.job.plan import Plan
from pgcli.cli.job.run_task import RunEngine
from pgcli.cli.ui.console import Screen
from pgcli.cli.ui.downloads import Downloads


def load_model(plan: Plan, screen: Screen, checkpoint: Checkpoint | None = None) -> RunEngine:
    """Load the plan's model from its checkpoint, which is found or downloaded if not given."""
    options = plan.options.model
    if checkpoint is None:
        checkpoint = find(plan.model, options.revision, progress=Downloads(screen))
    adapter = None
    if options.adapter is not None:
        adapter = find(options.adapter, kind="adapter", progress=Downloads(screen))
    with screen.status(f"loading {checkpoint.name}"):
        engine = plan.task.load(checkpoint, adapter, options)
    if options.device == "auto" and str(engine.device) == "cpu":
        warn_unused_gpu(screen)
    return engine
