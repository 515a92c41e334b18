"""The hooks of a run, which handle rows as they are saved: drawings, text files and masks."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pgcli import registry
from pgcli.errors import UsageError
from pgcli.images import ImageLimits
from pgcli.inputs.readers import IMAGE_ENDINGS
from pgcli.results.drawings import Drawings, draw_target
from pgcli.results.row_hook import RowHook
from pgcli.results.sidecars import Sidecars
from pgcli.run.request.options import OutputOptions
from pgcli.stores import Reader
from pgcli.tasks import AnyQuestion

ENDING = re.compile(r"\.[A-Za-z0-9_-]{1,16}")


def check_hooks(
    options: OutputOptions, sources: Sequence[str] = (), *, resumes: bool = False
) -> None:
    """Raise for what hooks cannot write, before the input is opened.

    A resumed run may draw into its own folder. Raises UsageError, OutputExists and OutputFailed.
    """
    ending, not_texts = options.sidecar, IMAGE_ENDINGS.union(registry.names("manifests"))
    if ending is not None and (not ENDING.fullmatch(ending) or ending.lower() in not_texts):
        raise UsageError(
            f"<--sidecar=> must be the extension of a text file, not {ending}",
            hint="for example <--sidecar .txt>",
        )
    if options.draw is not None:
        draw_target(options.draw, sources, overwrite=options.overwrite or resumes).check()


def make_hooks(
    options: OutputOptions,
    question: AnyQuestion,
    *,
    limits: ImageLimits | None = None,
    reader: Reader | None = None,
) -> list[RowHook]:
    """The hooks of a run. Nothing is created before the first row.

    `reader` fetches images at URLs once more.
    """
    hooks: list[RowHook] = []
    if options.sidecar is not None:
        has_rows = options.output != "-" or options.format == "jsonl"
        hooks.append(
            Sidecars(
                options.sidecar,
                overwrite=options.overwrite,
                is_only_output=not (has_rows or options.draw),
            )
        )
    if options.draw is not None:
        drawings = Drawings(
            options.draw,
            labels=question.objects,
            each=question.each,
            limits=limits,
            reader=reader,
        )
        hooks.append(drawings)
    return hooks
