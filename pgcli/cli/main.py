"""The program: all commands, and the conversion of errors to messages and exit codes."""

from __future__ import annotations

import errno
import sys
import traceback
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any

import typer

from pgcli import __version__
from pgcli.cli.exit_codes import EXIT_CODES
from pgcli.cli.options import declared
from pgcli.cli.program_name import program_name
from pgcli.cli.program_options import EAGER, ProgramOptions, ProgramState, store
from pgcli.cli.signals import end_process_by, raise_on_signals
from pgcli.cli.streams import discard_output, open_closed_streams, raise_on_closed_pipe
from pgcli.cli.typer_app import app
from pgcli.cli.ui.console import Screen
from pgcli.cli.ui.sanitize_logs import sanitized_logs
from pgcli.cli.usage_errors import to_usage_error
from pgcli.errors import OutputFailed, PgcliError
from pgcli.run.progress.shutdown import Interrupted

#: The errors of writing to a file that cannot grow.
STDOUT_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
TRACEBACK_CALLS = 3  # the last calls, which a traceback shows without --debug


def show_version(is_given: bool) -> None:
    """Print name and version, then exit."""
    if is_given:
        typer.echo(f"pgcli {__version__}")
        raise typer.Exit


@app.callback(
    invoke_without_command=True,
    epilog="PGCLI_<OPTION>, such as PGCLI_BATCH_SIZE=8, sets an option of the answering commands "
    "that may be given once, and the same option of others. ~/.config/pgcli/config.toml, or the "
    "file that --config names, sets these and repeatable ones (batch-size = 8, object = "
    '\\["cat", "dog"]), and below \\[view] any option of view. --no-NAME turns off a flag that '
    "they turned on. The command line comes first, then the environment.\n\n"
    "Exit codes: "
    + ", ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items())
    + ". After 12, 14 and 15, and after Ctrl-C, the same command resumes the run.",
)
def pgcli(
    context: typer.Context,
    config: Annotated[
        str | None, declared(ProgramOptions, "config", callback=store, hidden=True, **EAGER)
    ] = None,
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", callback=show_version, is_eager=True, help="Show the version."
        ),
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
    words = sys.argv[1:] if args is None else args
    state = ProgramState(arguments=tuple(words))
    Screen.style = state.style
    try:
        return call(args, state)
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


def call(args: Sequence[str] | None, state: ProgramState) -> int:
    """Run a command line and return its exit code. Raises the errors of `pgcli.errors`."""
    try:
        group = command_group()
        return int(group(args, prog_name=program_name(), standalone_mode=False, obj=state) or 0)
    except typer.TyperException as problem:
        error = to_usage_error(problem, state.arguments)
        raise error.with_traceback(problem.__traceback__) from None


@cache
def command_group() -> Any:
    """The program with its commands, as Typer makes it of its declaration: once."""
    return typer.main.get_command(app)


def report_bug(bug: Exception, state: ProgramState) -> int:
    """Print a bug with its traceback and return its exit code."""
    screen = Screen()
    short = None if state.debug else -TRACEBACK_CALLS
    screen.traceback(traceback.format_exception(bug, limit=short, chain=state.debug))
    screen.error(
        f"unexpected {type(bug).__name__}: {bug}",
        hint="this is a bug in pgcli: please report it with the output of --debug",
        exit_code=1,
    )
    return 1


def report_error(problem: PgcliError, state: ProgramState) -> int:
    """Print a known error with its hint and return its exit code."""
    screen = Screen()
    if state.debug:
        screen.traceback(traceback.format_exception(problem))
    screen.error(str(problem), hint=problem.hint, exit_code=problem.exit_code)
    if isinstance(problem, OutputFailed):
        discard_output(1)
    return problem.exit_code
