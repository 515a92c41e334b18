"""The commands that answer: caption, ask, detect, segment and ocr, with the options of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from pgcli import tasks
from pgcli.cli.options import Options, Sources, option, values
from pgcli.cli.program import PgcliCommand, app, with_options

SOURCES = """

SOURCE is any number of folders (searched recursively), image files, quoted globs, manifests \
(.parquet, .csv, .tsv, .jsonl), WebDataset archives (.tar), and - for standard input: a path or a \
JSON object on each line."""

Objects = Annotated[
    list[str],
    option("Answering", "--object", metavar="TEXT", once=False, help="What to find; repeatable."),
]


@app.command(
    cls=PgcliCommand,
    rich_help_panel="Ask pictures",
    help=f"Write one caption for each picture.{SOURCES}",
    epilog="$ pgcli caption photo.jpg\n"
    "$ pgcli caption photos -o captions.jsonl\n"
    "$ pgcli caption photos --model google/paligemma-3b-mix-224 -o rows.parquet",
)
@with_options
def caption(
    sources: Sources,
    options: Options,
    lang: Annotated[
        str, option("Answering", "--lang", metavar="TAG", help="Language of the captions.")
    ] = "en",
) -> None:
    limit = options.answering.max_new_tokens
    finish(sources, tasks.caption(lang, max_new_tokens=limit), options)


@app.command(
    cls=PgcliCommand,
    rich_help_panel="Ask pictures",
    help="Ask each picture one or several questions. Without --prompt, a manifest brings a prompt "
    f"in each row.{SOURCES}",
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
            help="A question; may be repeated. {column} is filled from the manifest's row.",
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
            help="A candidate; give two or more, and the likeliest is the answer.",
        ),
    ] = None,
    choices_column: Annotated[
        str | None,
        option(
            "Answering",
            "--choices-column",
            metavar="NAME",
            help="Column of a manifest: each row's candidates, a list or yes|no.",
        ),
    ] = None,
) -> None:
    question = tasks.ask(
        prompt if prompts_file is None else [*(prompt or ()), *values.lines(prompts_file)],
        choices=choice or (),
        choices_column=choices_column,
        max_new_tokens=options.answering.max_new_tokens,
    )
    finish(sources, question, options)


@app.command(
    cls=PgcliCommand,
    rich_help_panel="Ask pictures",
    help=f"Find objects in each picture, as boxes in its pixels.{SOURCES}",
    epilog="$ pgcli detect photo.jpg --object cat --draw drawn\n"
    '$ pgcli detect photos --object cat --object "red car" -o boxes.jsonl',
)
@with_options
def detect(
    sources: Sources,
    options: Options,
    object: Objects,
    strict: Annotated[
        bool,
        option(
            "Answering", "--strict", help="Allow no answer but whole boxes around these objects."
        ),
    ] = False,
) -> None:
    limit = options.answering.max_new_tokens
    finish(sources, tasks.detect(object, strict=strict, max_new_tokens=limit), options)


@app.command(
    cls=PgcliCommand,
    rich_help_panel="Ask pictures",
    help=f"Find objects in each picture, as boxes and the masks of what is in them.{SOURCES}",
    epilog="$ pgcli segment photo.jpg --object cat --draw drawn\n"
    "$ pgcli segment photos --object cat --mask-decoder vae-oid.npz -o masks.jsonl",
)
@with_options
def segment(
    sources: Sources,
    options: Options,
    object: Objects,
    mask_decoder: Annotated[
        str | None,
        option(
            "Model",
            "--mask-decoder",
            metavar="FILE",
            help="Weights that turn mask codes into pixels: big_vision's vae-oid.npz.",
        ),
    ] = None,
) -> None:
    limit = options.answering.max_new_tokens
    question = tasks.segment(object, max_new_tokens=limit)
    finish(sources, question, options, mask_decoder=mask_decoder)


@app.command(
    cls=PgcliCommand,
    rich_help_panel="Ask pictures",
    help=f"Read the text in each picture.{SOURCES}",
    epilog="$ pgcli ocr scan.png\n"
    "$ find scans -name '*.png' -print0 | pgcli ocr - -0 -o texts.jsonl",
)
@with_options
def ocr(sources: Sources, options: Options) -> None:
    finish(sources, tasks.ocr(max_new_tokens=options.answering.max_new_tokens), options)


def finish(
    sources: Sequence[str],
    question: tasks.Question,
    options: Options,
    *,
    mask_decoder: str | None = None,
) -> None:
    """Do what an answering command was asked to do, and end with its exit code."""
    from pgcli.cli.job import run

    question = tasks.with_region(question, options.answering.region)
    raise typer.Exit(run.answer(sources, question, options, mask_decoder=mask_decoder))
