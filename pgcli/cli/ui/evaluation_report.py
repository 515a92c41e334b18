"""Prints evaluations: as JSON, as lines, and what was joined."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence

from pgcli.cli.ui import stdout
from pgcli.cli.ui.console import Screen
from pgcli.evaluation.calibration import Bin
from pgcli.evaluation.evaluate import Evaluation, FileMeasures, as_json
from pgcli.evaluation.measures import Estimate
from pgcli.wording import count


def print_as_json(
    results: Sequence[str], found: Sequence[Evaluation], differences: dict[str, Estimate]
) -> None:
    """Print one object: the evaluation, or those of two files and their differences."""
    if len(found) == 1:
        stdout.print_json(found[0].as_json())
        return
    files = [{"file": name, **one.as_json()} for name, one in zip(results, found, strict=True)]
    changes = {name: as_json(one) for name, one in differences.items()}
    stdout.print_json({"files": files, "differences": changes})


def print_as_text(
    files: Sequence[FileMeasures],
    found: Sequence[Evaluation],
    differences: dict[str, Estimate],
    by: str | None,
) -> None:
    """Print a line for each metric, with its interval and its number of rows, and calibrations."""
    for file, one in zip(files, found, strict=True):
        if len(files) > 1:
            stdout.print_line(f"{file.joined.name}:")
        print_table(one.metrics)
        print_bins(file.calibration()[0])
        for value, group in one.groups.items():
            stdout.print_line(f"{by} {value}:")
            print_table(group.metrics)
    if differences:
        stdout.print_line(f"{files[1].joined.name} minus {files[0].joined.name}:")
        print_table(differences, sign="+")


def print_table(metrics: dict[str, Estimate], sign: str = "") -> None:
    """Print the metrics as lines of aligned cells; one without a value has a dash."""
    width = max(map(len, metrics), default=0)
    for name, one in metrics.items():
        value = "-"
        if not math.isnan(one.value):
            bounds = f"{one.low:{sign}.4f} to {one.high:{sign}.4f}"
            value = f"{one.value:{sign}.4f}  ({bounds})  {count(one.rows, 'row')}"
        stdout.print_line(f"  {name:{width}}  {value}")


def print_bins(bins: Sequence[Bin]) -> None:
    """Print the share of right boxes for each bin of confidence."""
    if bins:
        stdout.print_line("  confidence of boxes:")
    for one in bins:
        stdout.print_line(
            f"    {one.low:.1f} to {one.high:.1f}  mean {one.confidence:.2f}  "
            f"right {one.right:.2f}  {count(one.boxes, 'box')}"
        )


def report(files: Sequence[FileMeasures], screen: Screen, *, only_common: bool) -> None:
    """Report missing and surplus rows, and those with errors."""
    for file in files:
        joined = file.joined
        errors = sum((row.row or {}).get("error") is not None for row in joined.rows)
        counts = f"{joined.missing:,} missing, {joined.surplus:,} surplus, {errors:,} with errors"
        counted = "left out" if only_common else "counted as wrong"
        is_complete = not joined.missing and not joined.surplus
        hint = "" if is_complete or only_common else "--only-common leaves them out"
        note = "" if is_complete else f"; missing and surplus rows are {counted}"
        screen.info(f"{shlex.quote(joined.name)}: rows {counts}{note}", hint=hint)
        if joined.repeated:
            repeated = f"{joined.repeated:,} row{'s' * (joined.repeated != 1)}"
            screen.info(
                f"{shlex.quote(joined.name)}: {repeated} left out, as later ones have the same id "
                "and prompt"
            )
        if any(one.name == "cider" and one.rows == 1 for one in file.measures):
            screen.info("CIDEr of one image is 0, as its words are in every image")
