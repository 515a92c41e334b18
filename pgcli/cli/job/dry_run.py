"""How long a run will take and how large its rows will be, by a few of its pictures."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from rich.filesize import decimal

from pgcli.checkpoints.find import DEMO, find_local
from pgcli.cli.job import run as ask
from pgcli.cli.job.output import layout_of
from pgcli.cli.job.plan import Plan
from pgcli.cli.ui.console import Facts, Screen
from pgcli.cli.ui.duration import duration
from pgcli.pipeline import answers
from pgcli.records import Answer, error_answer
from pgcli.rows import json_text

if TYPE_CHECKING:
    from pgcli.engine.engine import Engine

PICTURES = 16  # so many are asked about; of fewer nothing needs to be foretold


def facts(plan: Plan, screen: Screen) -> Facts:
    """About how long it takes, and how much disk; nothing for few pictures, which is soon seen.

    What only the end tells, as of standard input, is not foretold, and no model is downloaded.
    """
    rows = plan.rows
    if screen.quiet or rows is None or (plan.pictures or 0) <= PICTURES:
        return []
    checkpoint = find_local(plan.options.model.model or DEMO, plan.options.model.revision)
    if checkpoint is None:
        return [("time", "unknown before the model is on this machine")]
    began = perf_counter()
    engine = ask.load_model(plan, screen, checkpoint)
    loaded = perf_counter()
    with screen.status(f"asking about {PICTURES} of the pictures"):
        made = sampled(plan, engine)
    spent = perf_counter() - loaded
    whole = loaded - began + spent / len(made) * rows
    rate = f"{len(made) / spent:.1f} rows/s, by {PICTURES} pictures"
    told = [("time", f"about {duration(whole)}; {rate}")]
    output = plan.options.output.output
    if output != "-":
        told.append(("disk", disk(plan, made, rows)))
    return told


def sampled(plan: Plan, engine: Engine) -> list[Answer]:
    """The rows of a few pictures from all over the input."""
    few = replace(plan.options.input, sample=PICTURES, limit=None)
    trial = replace(plan, options=replace(plan.options, input=few))
    task = plan.question.task
    refuse = partial(error_answer, task=task, model=engine.label)
    look = ask.look(trial, engine.spec, lambda: False, goes_on=False)
    asked = ask.asking(trial, engine, lambda: False)
    return list(answers(trial.items(), look, asked, refuse))


def disk(plan: Plan, made: list[Answer], rows: int) -> str:
    """What all rows will take as JSON lines, and what there is."""
    layout = layout_of(plan)
    size = sum(len(json_text(layout.row(one)).encode()) + 1 for one in made) / len(made) * rows
    free = shutil.disk_usage(Path(plan.options.output.output).absolute().parent).free
    return f"about {decimal(round(size))} as JSON lines, {decimal(free)} free"
