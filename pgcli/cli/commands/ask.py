"""pgcli ask: one answer for each image and prompt."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from pgcli.cli.answering import SOURCES, answer
from pgcli.cli.options import Given, with_options
from pgcli.cli.shared_options import Sources
from pgcli.cli.typer_app import command
from pgcli.errors import UsageError
from pgcli.run.request.make import records_of


@command(
    "ask",
    SOURCES,
    epilog='$ pgcli ask photo.jpg --prompt "what is on the table?"\n'
    '$ pgcli ask photos --prompt "is it indoors?" --choice yes --choice no',
)
@with_options(*records_of("ask"))
def ask(sources: Sources, given: Given) -> None:
    if not {"prompt", "prompts_file"} & given.values.keys():
        check_no_question(sources)
    answer("ask", sources, given)


def check_no_question(sources: Sequence[str]) -> None:
    """Raise UsageError for a source that is a question: several words, and no path or pattern."""
    from pgcli.inputs.walk import expand_source  # not at the top: --help has to be fast

    for source in reversed(sources):
        is_path = "/" in source or os.path.lexists(source)
        if len(source.split()) > 1 and not is_path and not expand_source(source)[1:]:
            files = [name for name in sources if name != source]
            command = shlex.join(["pgcli", "ask", *files, "--prompt", source])
            raise UsageError(f"there is no file {source!r}", hint=f"a question? {command}")
