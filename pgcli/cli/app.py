"""The program: all commands, and the conversion of errors to messages and exit codes."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from pgcli import __version__
from pgcli.cli import config
from pgcli.cli.commands import (
    ask,
    bench,
    caption,
    check,
    detect,
    doctor,
    export,
    info,
    ocr,
    segment,
    status,
    verify,
    view,
)
from pgcli.cli.options import DebugState
from pgcli.cli.program import PgcliGroup, app
from pgcli.cli.signals import Interrupted, end_process_by, raise_on_signals
from pgcli.cli.streams import discard_output, open_closed_streams, raise_on_closed_pipe
from pgcli.cli.ui.console import Screen
from pgcli.cli.ui.sanitize_logs import sanitized_logs
from pgcli.cli.usage_errors import to_usage_error
from pgcli.errors import OutputFailed, PgcliError
from pgcli.printable import printable

# importing a command adds it to the app; --help lists them in this order
COMMANDS = (
    *(caption, ask, detect, segment, ocr),
    *(view, export, status, check),
    *(info, verify, bench, doctor),
)

#: The errors of writing to a file that cannot grow.
STDOUT_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
COMPLETE = "_PGCLI_COMPLETE"  # requests completions; Typer prints a wrong value
TRACEBACK_CALLS = 3  # the last calls, which a traceback shows without --debug


def show_version(is_given: bool) -> None:
    """Print name and version, then exit."""
    if is_given:
        typer.echo(f"pgcli {__version__}")
        raise typer.Exit


@app.callback(
    invoke_without_command=True,
    epilog="An option that may be given once can also be set by the environment variable "
    "PGCLI_<OPTION>, or by a line in ~/.config/pgcli/config.toml.\n\n"
    "Exit codes: 0 every row answered, 1 a bug, 2 wrong usage, 3 some rows have errors, 4 no "
    "image, 5 a difference found, 10 model not available, 12 output in use, 13 output of another "
    "run, 14 output not written, 15 too many errors, 16 model files not usable, 17 no device or "
    "memory. After 12, 14 and 15, and after Ctrl-C, the same command resumes the run.",
)
def pgcli(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Ask questions about folders of images with PaliGemma.

    The answers are rows of JSON lines or Parquet.

    `pgcli COMMAND --help` describes a command and shows examples.

    $ pgcli caption photo.jpg
    $ pgcli caption photos -o captions.jsonl
    $ pgcli view captions.jsonl
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit
    assert isinstance(context.command, PgcliGroup)
    if context.invoked_subcommand != "doctor":  # doctor itself reports a broken file
        settable = config.settable_options(context.command.commands)
        context.default_map = config.read_config(config.config_path(), settable)


def main(args: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code.

    After a signal, or when the reader of a pipe is gone, the process cleans up and then ends by the
    signal instead.
    """
    open_closed_streams()
    try:
        with raise_on_signals(), raise_on_closed_pipe(), sanitized_logs():
            return exit_code(args)
    except Interrupted as interrupted:
        end_process_by(interrupted.signum)
        raise


def exit_code(args: Sequence[str] | None) -> int:
    """Run a command line; print a message for any error and return its exit code."""
    state = DebugState()
    if COMPLETE in os.environ:
        os.environ[COMPLETE] = printable(os.environ[COMPLETE])
    try:
        return int(app(args, prog_name="pgcli", standalone_mode=False, obj=state) or 0)
    except typer.TyperException as problem:
        error = to_usage_error(problem, sys.argv[1:] if args is None else args)
        return report_error(error.with_traceback(problem.__traceback__), state)
    except PgcliError as problem:
        return report_error(problem, state)
    except BrokenPipeError:
        raise
    except OSError as problem:
        # errors of files are converted where these are written: this one is of standard output
        if problem.errno not in STDOUT_ERRNOS or problem.filename is not None:
            return report_bug(problem, state)
        failed = OutputFailed(
            f"cannot write standard output: {problem.strerror}",
            hint="free some space where it is redirected to, or redirect it elsewhere",
        )
        return report_error(failed, state)
    except Exception as bug:  # noqa: BLE001 - any other exception is a bug and reported as one
        return report_bug(bug, state)


def report_bug(bug: Exception, state: DebugState) -> int:
    """Print a bug with its traceback and return its exit code."""
    screen = Screen()
    short = None if state.debug else -TRACEBACK_CALLS
    screen.traceback(traceback.format_exception(bug, limit=short, chain=state.debug))
    screen.error(
        f"unexpected {type(bug).__name__}: {bug}",
        hint="this is a bug in pgcli: please report it with the output of --debug",
    )
    return 1


def report_error(problem: PgcliError, state: DebugState) -> int:
    """Print a known error with its hint and return its exit code."""
    screen = Screen()
    if state.debug:
        screen.traceback(traceback.format_exception(problem))
    screen.error(str(problem), hint=problem.hint)
    if isinstance(problem, OutputFailed):
        discard_output(1)
    return problem.exit_code
