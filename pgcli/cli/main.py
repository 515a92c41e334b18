"""The program: all commands, and the conversion of errors to messages and exit codes."""

from __future__ import annotations

import errno
import sys
import traceback
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any

import typer

from pgcli.cli.app import app, to_usage_error
from pgcli.cli.config import Program, read_program
from pgcli.cli.console import Screen, StderrStyle, sanitized_logs
from pgcli.cli.exits import (
    EXIT_CODES,
    discard_output,
    end_process_by,
    open_closed_streams,
    raise_on_closed_pipe,
    raise_on_signals,
)
from pgcli.declare import VARIABLES
from pgcli.errors import OutputFailed, PgcliError
from pgcli.run.events import Interrupted
from pgcli.version import __version__

#: The errors of writing to a file that cannot grow.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
TRACEBACK_CALLS = 3  # the last calls, which a traceback shows without --debug


def show_version(is_given: bool) -> None:
    """Print name and version, then exit."""
    if is_given:
        typer.echo(f"pgcli {__version__}")
        raise typer.Exit


@app.callback(
    invoke_without_command=True,
    epilog="~/.config/pgcli/config.toml (or --config FILE) sets options: batch-size = 8, "
    'object = \\["cat", "dog"]. Options of a single command go below its name: \\[view]. '
    f"Environment variables: PGCLI_ {', '.join(sorted(VARIABLES)).upper()}. --no-NAME turns a "
    "flag off. The command line overrides variables, and variables override the file.\n\n"
    "Exit codes: "
    + ", ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items())
    + ". After 12, 14 and 15, and after Ctrl-C, the same command resumes the run.",
)
def pgcli(
    context: typer.Context,
    config: Annotated[str | None, typer.Option("--config", hidden=True)] = None,
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", callback=show_version, is_eager=True, help="Show the version."
        ),
    ] = False,
) -> None:
    """Ask questions about folders of images with PaliGemma.

    The answers are rows of JSON lines or Parquet.

    `pgcli COMMAND --help` describes a command and shows examples; with `--all`, all its options.

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
            return run_words(sys.argv[1:] if args is None else args)
    except Interrupted as interrupted:
        end_process_by(interrupted.signum)


def run_words(words: Sequence[str]) -> int:
    """Run a command line; print a message for any error and return its exit code."""
    program = read_program(words)
    Screen.style = StderrStyle(program.log_format, program.no_progress)
    try:
        return call(program)
    except PgcliError as problem:
        return report_error(problem, program)
    except BrokenPipeError:
        raise
    except OSError as problem:
        if (failed := output_failed(problem)) is None:
            return report_bug(problem, program)
        return report_error(failed, program)
    except Exception as bug:  # noqa: BLE001 - any other exception is a bug and reported as one
        return report_bug(bug, program)


def output_failed(problem: OSError) -> OutputFailed | None:
    """The error where standard output or a temporary file could not be written; else None.

    The errors of other files are converted where these are written.
    """
    if (problem.strerror or "").startswith("No usable temporary directory"):  # from `tempfile`
        return OutputFailed(
            f"cannot write a temporary file: {problem.strerror}",
            hint="free some space there, or set TMPDIR to another folder",
        )
    if problem.errno in FULL or (problem.filename is None and problem.errno == errno.EIO):
        return OutputFailed(
            f"cannot write {problem.filename or 'standard output'}: {problem.strerror}",
            hint="free some space there; TMPDIR names another folder for temporary files",
        )
    return None


def call(program: Program) -> int:
    """Run a command line and return its exit code. Raises the errors of `pgcli.errors`."""
    words = program.arguments
    try:
        group = command_group()
        return int(group([*words], prog_name="pgcli", standalone_mode=False, obj=program) or 0)
    except typer.TyperException as problem:
        raise to_usage_error(problem, words).with_traceback(problem.__traceback__) from None


@cache
def command_group() -> Any:
    """The program with its commands, as Typer makes it of its declaration: once."""
    return typer.main.get_command(app)


def report_bug(bug: Exception, program: Program) -> int:
    """Print a bug with its traceback and return its exit code."""
    screen = Screen()
    short = None if program.debug else -TRACEBACK_CALLS
    screen.traceback(traceback.format_exception(bug, limit=short, chain=program.debug))
    screen.error(
        f"unexpected {type(bug).__name__}: {bug}",
        hint="this is a bug in pgcli: please report it with the output of --debug",
        exit_code=1,
    )
    return 1


def report_error(problem: PgcliError, program: Program) -> int:
    """Print a known error with its hint and return its exit code."""
    screen = Screen()
    if program.debug:
        screen.traceback(traceback.format_exception(problem))
    screen.error(str(problem), hint=problem.hint, exit_code=problem.exit_code)
    if isinstance(problem, OutputFailed):
        discard_output(1)
    return problem.exit_code
