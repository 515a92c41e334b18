"""Prints evaluations: as JSON, as lines, and what was joined."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence

from pgcli.cli.ui import stdout
from pgcli.cli.ui.console import Screen
from pgcli.evaluation.evaluate import Evaluation, as_json
from pgcli.evaluation.measures import Estimate
from pgcli.text import count


def print_as_json(evaluations: Sequence[Evaluation], differences: Mapping[str, Estimate]) -> None:
    """Print one object: the evaluation, or two evaluations and their differences."""
    if len(evaluations) == 1:
        stdout.print_json(evaluations[0].as_json())
        return
    files = [{"file": file.joined.name, **file.as_json()} for file in evaluations]
    changes = {name: as_json(change) for name, change in differences.items()}
    stdout.print_json({"files": files, "differences": changes})


def print_as_text(
    evaluations: Sequence[Evaluation], differences: Mapping[str, Estimate], column: str | None
) -> None:
    """Print a line for each metric, with its interval and its number of rows."""
    for evaluation in evaluations:
        if len(evaluations) > 1:
            stdout.print_line(f"{evaluation.joined.name}:")
        print_table(evaluation.metrics)
        for value, group in evaluation.groups.items():
            stdout.print_line(f"{column} {value}:")
            print_table(group.metrics)
    if differences:
        first, second = (evaluation.joined.name for evaluation in evaluations)
        stdout.print_line(f"{second} minus {first}:")
        print_table(differences, sign="+")


def print_table(metrics: Mapping[str, Estimate], sign: str = "") -> None:
    """Print the metrics as lines of aligned cells; one without a value has a dash."""
    width = max(map(len, metrics), default=0)
    for name, estimate in metrics.items():
        value = "-"
        if not math.isnan(estimate.value):
            bounds = f"{estimate.low:{sign}.4f} to {estimate.high:{sign}.4f}"
            value = f"{estimate.value:{sign}.4f}  ({bounds})  {count(estimate.rows, 'row')}"
        stdout.print_line(f"  {name:{width}}  {value}")


def report_rows(evaluation: Evaluation, screen: Screen, *, only_common: bool) -> None:
    """Report missing, surplus and failed rows."""
    joined = evaluation.joined
    errors = sum((row.row or {}).get("error") is not None for row in joined.rows)
    counts = f"{joined.missing:,} missing, {joined.surplus:,} surplus, {errors:,} with errors"
    is_complete = not joined.missing and not joined.surplus
    hint = "" if is_complete or only_common else "--only-common ignores them"
    fate = "ignored" if only_common else "counted as wrong"
    note = "" if is_complete else f"; missing and surplus rows are {fate}"
    screen.info(f"{shlex.quote(joined.name)}: rows {counts}{note}", hint=hint)
    if "cider" in evaluation.metrics and len({row.image for row in joined.rows}) == 1:
        screen.info("CIDEr needs more than one image; of a single one it is 0")
