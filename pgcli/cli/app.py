"""The program: its commands together, and errors turned into exit codes."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from pgcli import __version__
from pgcli.cli import config as settings
from pgcli.cli.commands import answering, bench, check, doctor, export, info, status, verify, view
from pgcli.cli.job import shutdown
from pgcli.cli.options import DebugState
from pgcli.cli.program import PgcliGroup, app
from pgcli.cli.ui.console import Screen
from pgcli.cli.ui.sanitize_logs import sanitized_logs
from pgcli.cli.usage_errors import to_usage_error
from pgcli.errors import OutputFailed, PgcliError
from pgcli.printable import printable

# each command joins the app as it is imported
__all__ = [
    "answering",
    "app",
    "bench",
    "check",
    "doctor",
    "export",
    "info",
    "main",
    "status",
    "verify",
    "view",
]

#: What the system answers where an open file takes no more.
STDOUT_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
COMPLETE = "_PGCLI_COMPLETE"  # asks Typer for completions, and is repeated by it where it is wrong
TRACEBACK_CALLS = 3  # how many calls a traceback shows without --debug, the last ones


def show_version(wanted: bool) -> None:
    """Print name and version, and end."""
    if wanted:
        typer.echo(f"pgcli {__version__}")
        raise typer.Exit


@app.callback(
    invoke_without_command=True,
    epilog="Every option that may be given once can also be set by PGCLI_<OPTION> in the "
    "environment, or by a line in ~/.config/pgcli/config.toml.\n\n"
    "Exit codes: 0 every row answered, 1 a bug, 2 wrong usage, 3 some rows have errors, 4 no "
    "picture, 5 a difference found, 10 model not available, 12 output in use, 13 output of another "
    "run, 14 output not written, 15 too many errors, 16 model files not usable, 17 no device or "
    "memory. After 12, 14 and 15, and after Ctrl-C, the same command goes on.",
)
def pgcli(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Ask folders of images questions with PaliGemma; answers are rows of JSON lines or Parquet.

    $ pgcli caption photo.jpg
    $ pgcli caption photos -o captions.jsonl
    $ pgcli view captions.jsonl

    `pgcli COMMAND --help` shows what a command does, with examples.
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit
    assert isinstance(context.command, PgcliGroup)
    if context.invoked_subcommand != "doctor":  # which names what is wrong with the file
        settable = settings.settable_options(context.command.commands)
        context.default_map = settings.read_config(settings.config_path(), settable)


def main(args: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code.

    After a signal, or when the reader of a pipe has gone, the process ends by the signal instead,
    once it is tidy.
    """
    shutdown.fill_closed()
    try:
        with shutdown.signals_watched(), shutdown.readers_watched(), sanitized_logs():
            return exit_code(args)
    except shutdown.Interrupted as stop:
        shutdown.end_by(stop.signum)
        raise


def exit_code(args: Sequence[str] | None) -> int:
    """The exit code of a command line: the one place where errors become codes and messages."""
    session = DebugState()
    if COMPLETE in os.environ:
        os.environ[COMPLETE] = printable(os.environ[COMPLETE])
    try:
        return int(app(args, prog_name="pgcli", standalone_mode=False, obj=session) or 0)
    except typer.TyperException as problem:
        said = to_usage_error(problem, sys.argv[1:] if args is None else args)
        return report_error(said.with_traceback(problem.__traceback__), session)
    except PgcliError as problem:
        return report_error(problem, session)
    except BrokenPipeError:
        raise
    except OSError as problem:
        # where rows and files are written this is said already: it is standard output that is full
        if problem.errno not in STDOUT_ERRNOS or problem.filename is not None:
            return report_bug(problem, session)
        failed = OutputFailed(
            f"cannot write standard output: {problem.strerror}",
            hint="make room or mend the place that it goes to",
        )
        return report_error(failed, session)
    except Exception as bug:  # noqa: BLE001 - whatever else goes wrong is a bug, and said to be one
        return report_bug(bug, session)


def report_bug(bug: Exception, session: DebugState) -> int:
    """Show a bug with its traceback, and return its exit code."""
    screen = Screen()
    short = None if session.debug else -TRACEBACK_CALLS
    screen.traceback(traceback.format_exception(bug, limit=short, chain=session.debug))
    screen.error(
        f"unexpected {type(bug).__name__}: {bug}",
        hint="this is a bug in pgcli: please report it, with all lines that --debug shows",
    )
    return 1


def report_error(problem: PgcliError, session: DebugState) -> int:
    """Show a problem that has a remedy, and return its exit code."""
    screen = Screen()
    if session.debug:
        screen.traceback(traceback.format_exception(problem))
    screen.error(str(problem), hint=problem.hint)
    if isinstance(problem, OutputFailed):
        shutdown.forget(1)
    return problem.exit_code
