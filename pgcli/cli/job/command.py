"""What the declarations of the answering commands share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from pgcli.cli.job.engines.forked_engines import import_for_engines
from pgcli.cli.options import JobOptions, Options, option
from pgcli.tasks import EmbeddingQuestion, Question, with_extras, with_region

SOURCES = """SOURCE is any number of folders (searched recursively), image files, quoted globs, \
manifests (.parquet, .csv, .tsv, .jsonl), WebDataset archives (.tar), and - for standard input: a \
path or a JSON object on each line."""

Objects = Annotated[
    list[str],
    option("Answering", "--object", metavar="TEXT", once=False, help="What to find; repeatable."),
]


def run_and_exit(
    sources: Sequence[str],
    question: Question,
    options: Options,
    *,
    mask_decoder: str | None = None,
) -> None:
    """Answer the question about every image, then exit with the code of the run."""
    import_for_engines(options, options.model.engines)
    from pgcli.cli.job.answering_task import AnsweringTask
    from pgcli.cli.job.run import run_command  # imports Pillow, which --help does not need

    answering = options.answering
    question = with_extras(
        with_region(question, answering.region),
        alternatives=answering.alternatives,
        token_logprobs=answering.token_logprobs,
    )
    task = AnsweringTask(question, answering, mask_decoder)
    raise typer.Exit(run_command(sources, task, options))


def embed_and_exit(
    sources: Sequence[str],
    question: EmbeddingQuestion,
    options: JobOptions,
) -> None:
    """Answer the question about every image or text, then exit with the code of the run."""
    import_for_engines(options, options.model.engines)
    from pgcli.cli.job.embedding_task import EmbeddingTask
    from pgcli.cli.job.run import run_command

    raise typer.Exit(run_command(sources, EmbeddingTask(question), options))
