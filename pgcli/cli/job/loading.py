"""The model of a run: found, downloaded if needed, and loaded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pgcli.checkpoints.config import read_config
from pgcli.checkpoints.find import DEMO, Checkpoint, find
from pgcli.cli.find_model import warn_unused_gpu
from pgcli.cli.job.plan import Plan
from pgcli.cli.ui.console import Screen
from pgcli.cli.ui.downloads import Downloads
from pgcli.tasks import check_max_new_tokens

if TYPE_CHECKING:
    from pgcli.engine.engine import InferenceEngine


def load_model(plan: Plan, screen: Screen, checkpoint: Checkpoint | None = None) -> InferenceEngine:
    """Load the plan's model from its checkpoint, which is found or downloaded if not given."""
    options, mask_decoder = plan.options.model, plan.mask_decoder
    if checkpoint is None:
        checkpoint = find(options.model or DEMO, options.revision, progress=Downloads(screen))
    adapter = None
    if options.adapter is not None:
        adapter = find(options.adapter, kind="adapter", progress=Downloads(screen))
    check_max_new_tokens(plan.question, read_config(checkpoint.folder).max_answer_tokens)
    with screen.status(f"loading {checkpoint.name}"):
        # these import torch, which takes a second
        from pgcli.engine.loader import load
        from pgcli.engine.memory import new_slots

        engine = load(
            checkpoint,
            adapter=adapter,
            masks=None if mask_decoder is None else Path(mask_decoder),
            device=options.device,
            dtype=options.dtype,
            batch_size=options.batch_size,
            quantize=options.quantize,
            max_new_tokens=new_slots(plan.question),
        )
    if options.device == "auto" and str(engine.device) == "cpu":
        warn_unused_gpu(screen)
    return engine
