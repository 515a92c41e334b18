"""Messages before a run about options that may surprise."""

from __future__ import annotations

import sys

from pgcli.checkpoints.find import DEMO, FETCH_DECODER
from pgcli.cli.job.demo_limit import REAL_MODEL
from pgcli.cli.job.plan import Plan
from pgcli.cli.ui.console import Screen, is_terminal


def print_notices(plan: Plan, screen: Screen) -> None:
    """Print what the user should know before waiting for the answers."""
    if plan.uses_default_model:
        screen.info(
            f"{DEMO}, the built-in model, answers: it knows only drawings of coloured shapes; "
            f"name {REAL_MODEL}"
        )
    if "-" in plan.sources and is_terminal(sys.stdin):
        screen.info("reading paths from the terminal, one on each line; Ctrl-D ends them")
    print_ignored_options(plan, screen)
    if plan.question.task == "segment" and plan.mask_decoder is None:
        screen.info(
            "masks stay codes, as no decoder is named: --mask-decoder FILE turns them into pixels",
            hint=f"the decoder that PaliGemma was trained with: {FETCH_DECODER}",
        )


def print_ignored_options(plan: Plan, screen: Screen) -> None:
    """Print which options of the command line have no effect on this run."""
    options = plan.options.answering
    if plan.options.running.probe:
        screen.info("--probe changes nothing without --dry-run")
    if options.temperature == 0 and (options.top_p < 1 or options.top_k):
        screen.info("--top-p and --top-k change nothing without a --temperature")
    if plan.question.has_choices and (options.temperature or options.max_new_tokens):
        screen.info("--temperature and --max-new-tokens change nothing where answers are choices")
