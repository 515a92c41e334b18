"""Messages before a run about options that may surprise."""

from __future__ import annotations

import sys

from pgcli.cli.job.plan import Plan
from pgcli.cli.ui.console import Screen, is_terminal


def print_notices(plan: Plan, screen: Screen) -> None:
    """Print what the user should know before waiting for the answers."""
    if plan.uses_default_model:
        task = plan.task
        screen.info(
            f"no model is named: this is {task.default_model}, the built-in one, which knows only "
            f"{task.knows}",
            hint=f"for other images, {task.real_model}",
        )
    if "-" in plan.sources and is_terminal(sys.stdin):
        screen.info("reading paths from the terminal, one on each line; Ctrl-D ends them")
    if plan.options.running.probe:
        screen.info("--probe changes nothing without --dry-run")
    for message, hint in plan.task.notices(plan.options.model):
        screen.info(message, hint=hint)
