"""What `--draw DIR` asks for, checked before a model is loaded."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from pgcli.cli.job.draw.painter import DrawHook, NotDrawing
from pgcli.cli.job.plan import Plan
from pgcli.cli.result_files.check_target import check_folder
from pgcli.errors import UsageError
from pgcli.images import ImageLimits
from pgcli.sources.paths import parse_path, resolves_inside


def open_drawing(
    plan: Plan, limits: ImageLimits, tell: Callable[[str], None], *, goes_on: bool = False
) -> NotDrawing:
    """What draws as `--draw` says, all that can be refused about it refused here.

    Nothing is made before its `with` block is entered. A run that goes on finds what it drew
    before. Raises UsageError, OutputExists and OutputFailed.
    """
    folder = plan.options.output.draw
    if folder is None:
        return NotDrawing()
    for name in plan.names:
        check_apart(folder, name)
    is_filled = check_folder(folder, "--draw", overwrite=plan.options.output.overwrite or goes_on)
    # a reader of its own: the run's is closed before the last image is drawn
    url_reader = plan.options.input.url_reader
    drawing = DrawHook(
        folder, asked=plan.question.objects, limits=limits, url_reader=url_reader, tell=tell
    )
    if is_filled and plan.source.total is not None:  # standard input is there only once
        for item in plan.source:
            drawing.spare(item)
    return drawing


def check_apart(folder: str, source: str) -> None:
    """Refuse to draw into a folder that is read: the next run would read the drawn pictures."""
    root = os.path.realpath(parse_path(source))
    if source != "-" and Path(root).is_dir() and resolves_inside(folder, root):
        raise UsageError(
            f"{folder} lies in {source}, which is read, and drawn pictures would be too",
            hint="choose a folder outside it with --draw",
        )
