"""The option `--draw DIR`: its folder, checked before the input is opened."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from pgcli.cli.job.draw.painter import DrawHook, check_not_inside
from pgcli.cli.job.input import RunInput
from pgcli.cli.job.plan import Plan
from pgcli.cli.result_files.check_target import check_folder
from pgcli.errors import UsageError
from pgcli.sources.paths import parse_path, resolves_inside


def check_draw(plan: Plan, *, resumes: bool = False) -> None:
    """Raise UsageError, OutputExists or OutputFailed for a folder that cannot be drawn into.

    A resumed run draws into the folder that it filled before.
    """
    folder = plan.options.output.draw
    if folder is None:
        return
    for source in plan.sources:
        check_not_read(folder, source)
    check_folder(folder, "--draw", overwrite=plan.options.output.overwrite or resumes)


def check_drawn_images(input: RunInput) -> None:
    """Raise UsageError if an image of the input is in the `--draw` folder."""
    folder = input.plan.options.output.draw
    # standard input can be read only once
    if folder is None or input.source.total is None:
        return
    if Path(folder).is_dir() and any(Path(folder).iterdir()):
        root = os.path.realpath(folder)
        for item in input.source:
            check_not_inside(item, folder, root)


def make_drawing(input: RunInput, say: Callable[[str], None]) -> DrawHook | None:
    """The hook of `--draw`, if given. Its folder is created when its `with` block is entered."""
    plan = input.plan
    folder = plan.options.output.draw
    if folder is None:
        return None
    return DrawHook(
        folder,
        labels=plan.question.objects,
        limits=plan.image_limits,
        # a reader of its own: that of the input is closed before the last drawing
        url_reader=plan.options.input.url_reader,
        say=say,
    )


def check_not_read(folder: str, source: str) -> None:
    """Raise UsageError for a folder inside a source: the next run would read the drawings."""
    root = os.path.realpath(parse_path(source))
    if source != "-" and Path(root).is_dir() and resolves_inside(folder, root):
        raise UsageError(
            f"{folder} is inside {source}, which is read, and the drawings would be read too",
            hint="choose a folder outside it with --draw",
        )
