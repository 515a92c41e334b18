"""The commands, and errors turned into exit codes."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from pgcli import __version__, tasks
from pgcli.cli import settings, stopping
from pgcli.cli.commands import Command, Program, with_options
from pgcli.cli.misuse import in_our_words
from pgcli.cli.options import (
    MODELS,
    Debug,
    Device,
    Dtype,
    Options,
    Revision,
    Session,
    Sources,
    option,
)
from pgcli.cli.screen import Screen
from pgcli.errors import OutputFailed, PgcliError

SOURCES = """

SOURCE is any number of folders (searched recursively), image files, quoted globs, manifests \
(.parquet, .csv, .tsv, .jsonl), and - for standard input: a path or a JSON object on each line."""

SHORT = 3  # how many calls a traceback shows without --debug, the last ones

app = typer.Typer(
    cls=Program,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


def show_version(wanted: bool) -> None:
    """Print name and version, and end."""
    if wanted:
        typer.echo(f"pgcli {__version__}")
        raise typer.Exit


@app.callback(
    invoke_without_command=True,
    epilog="Every option can also be set by PGCLI_<OPTION> in the environment, or by a line in "
    "~/.config/pgcli/config.toml.\n\n$ pgcli caption examples/images",
)
def pgcli(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Ask folders of images questions with PaliGemma; answers are rows of JSON lines or Parquet."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit
    assert isinstance(context.command, Program)
    context.default_map = settings.read(settings.file(), settings.known(context.command.commands))


@app.command(
    cls=Command,
    help=f"Write one caption for each picture.{SOURCES}",
    epilog="$ pgcli caption examples/images",
)
@with_options
def caption(
    sources: Sources,
    options: Options,
    lang: Annotated[
        str, option("Answering", "--lang", metavar="TAG", help="Language of the captions.")
    ] = "en",
) -> None:
    finish(sources, tasks.caption(lang, max_new_tokens=options.answering.max_new_tokens), options)


@app.command(
    cls=Command,
    help="Ask each picture one or several questions. Without --prompt, a manifest brings a prompt "
    f"in each row.{SOURCES}",
    epilog='$ pgcli ask examples/images --prompt "how many shapes are there?"',
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
            help="A question; may be repeated. {column} is filled from the manifest's row.",
        ),
    ] = None,
) -> None:
    finish(sources, tasks.ask(prompt, max_new_tokens=options.answering.max_new_tokens), options)


@app.command(
    cls=Command,
    help=f"Find objects in each picture, as boxes in its pixels.{SOURCES}",
    epilog='$ pgcli detect examples/images --object "red circle"',
)
@with_options
def detect(
    sources: Sources,
    options: Options,
    object: Annotated[
        list[str],
        option(
            "Answering", "--object", metavar="TEXT", once=False, help="What to find; repeatable."
        ),
    ],
) -> None:
    finish(sources, tasks.detect(object, max_new_tokens=options.answering.max_new_tokens), options)


@app.command(
    cls=Command,
    help=f"Read the text in each picture.{SOURCES}",
    epilog="$ pgcli ocr examples/images/one.png",
)
@with_options
def ocr(sources: Sources, options: Options) -> None:
    finish(sources, tasks.ocr(max_new_tokens=options.answering.max_new_tokens), options)


@app.command(
    cls=Command,
    help="Show a model's sizes, the memory it needs and its files, without loading it.\n\n"
    "MODEL is a folder, a name on the Hub, or demo, the built-in one, which is the default.",
    epilog="$ pgcli info demo",
)
def info(
    model: Annotated[
        str,
        typer.Argument(
            metavar="[MODEL]",
            envvar="PGCLI_MODEL",
            hidden=True,
            autocompletion=lambda: list(MODELS),
        ),
    ] = MODELS[0],
    json: Annotated[bool, option("Output", "--json", help="Print one JSON object.")] = False,
    revision: Revision = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    debug: Debug = False,
) -> None:
    from pgcli.cli import models

    models.info(model, revision=revision, device=device, dtype=dtype, as_json=json)


def finish(sources: Sequence[str], question: tasks.Question, options: Options) -> None:
    """Do what an answering command was asked to do, and end with its exit code."""
    from pgcli.cli import ask

    raise typer.Exit(ask.answer(sources, question, options))


def main(args: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code.

    After a signal, or when the reader of a pipe has gone, the process ends by the signal instead,
    once it is tidy.
    """
    stopping.fill_closed()
    try:
        with stopping.signals_watched(), stopping.readers_watched():
            return outcome(args)
    except stopping.Stopped as stop:
        stopping.end_by(stop.signum)
        raise


def outcome(args: Sequence[str] | None) -> int:
    """The exit code of a command line: the one place where errors become codes and messages."""
    session = Session()
    try:
        return int(app(args, prog_name="pgcli", standalone_mode=False, obj=session) or 0)
    except typer.TyperException as problem:
        return known(in_our_words(problem).with_traceback(problem.__traceback__), session)
    except PgcliError as problem:
        return known(problem, session)
    except Exception as bug:  # noqa: BLE001 - whatever else goes wrong is a bug, and said to be one
        screen = Screen()
        short = None if session.debug else -SHORT
        screen.trace(traceback.format_exception(bug, limit=short, chain=session.debug))
        screen.problem(
            f"unexpected {type(bug).__name__}: {bug}",
            hint="this is a bug in pgcli: please report it, with all lines that --debug shows",
        )
        return 1


def known(problem: PgcliError, session: Session) -> int:
    """Show a problem that has a remedy, and return its exit code."""
    screen = Screen()
    if session.debug:
        screen.trace(traceback.format_exception(problem))
    screen.problem(str(problem), hint=problem.hint)
    if isinstance(problem, OutputFailed):
        stopping.forget_output()
    return problem.exit_code
