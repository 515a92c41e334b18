"""pgcli ask: one answer for each image and prompt."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from typing import Annotated

from pgcli import tasks
from pgcli.cli.job.command import SOURCES, run_and_exit
from pgcli.cli.option_records import with_options
from pgcli.cli.options import Options, Sources, option, values
from pgcli.cli.typer_app import command
from pgcli.errors import UsageError


@command(
    "ask",
    SOURCES,
    epilog='$ pgcli ask photo.jpg --prompt "what is on the table?"\n'
    '$ pgcli ask photos --prompt "is it indoors?" --choice yes --choice no',
)
@with_options
def ask(
    sources: Sources,
    options: Options,
    prompt: Annotated[
        list[str] | None,
        option(
            "Answering",
            "--prompt",
            metavar="TEXT",
            once=False,
            help="A question; repeatable. {column} is replaced by the value in the manifest's row.",
        ),
    ] = None,
    prompts_file: Annotated[
        str | None,
        option(
            "Answering",
            "--prompts-file",
            metavar="FILE",
            help="A text file with a prompt on each line, asked after those of --prompt.",
        ),
    ] = None,
    choice: Annotated[
        list[str] | None,
        option(
            "Answering",
            "--choice",
            metavar="TEXT",
            once=False,
            help="A candidate answer; give two or more. The most likely one is the answer.",
        ),
    ] = None,
    choices_column: Annotated[
        str | None,
        option(
            "Answering",
            "--choices-column",
            metavar="NAME",
            help="Column of a manifest: the candidates of each row, a list or yes|no.",
        ),
    ] = None,
) -> None:
    if prompt is None and prompts_file is None:
        check_no_question(sources)
    if any(not text.strip() for text in prompt or ()):
        raise UsageError("the prompt is empty", hint='write --prompt "what is this?"')
    question = tasks.ask(
        prompt if prompts_file is None else [*(prompt or ()), *values.lines(prompts_file)],
        choices=choice or (),
        choices_column=choices_column,
        max_new_tokens=options.answering.max_new_tokens,
    )
    run_and_exit(sources, question, options)


def check_no_question(sources: Sequence[str]) -> None:
    """Raise UsageError for a source that is a question: several words, and no path or pattern."""
    from pgcli.sources.patterns import expand_source  # not at the top: --help has to be fast

    for source in reversed(sources):
        is_path = "/" in source or os.path.lexists(source)
        if len(source.split()) > 1 and not is_path and not expand_source(source)[1:]:
            others = [other for other in sources if other != source]
            command = shlex.join(["pgcli", "ask", *others, "--prompt", source])
            raise UsageError(f"there is no file {source!r}", hint=f"a question? {command}")
