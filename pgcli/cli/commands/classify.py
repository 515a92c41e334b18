"""pgcli classify: the most probable labels of each image."""

from __future__ import annotations

from typing import Annotated

from pgcli import tasks
from pgcli.cli.job.command import SOURCES, embed_and_exit
from pgcli.cli.option_records import with_options
from pgcli.cli.options import JobOptions, Sources, number_option, option
from pgcli.cli.options.towers import RawText
from pgcli.cli.typer_app import command


@command(
    "classify",
    SOURCES,
    epilog="$ pgcli classify photos --label cat --label dog -o labels.jsonl\n"
    '$ pgcli classify photos --label cat --label dog --template "my {label}"\n'
    "$ pgcli classify photos --model google/vit-base-patch16-224 --top 3",
)
@with_options
def classify(
    sources: Sources,
    options: JobOptions,
    label: Annotated[
        list[str] | None,
        option(
            "Labels",
            "--label",
            metavar="TEXT",
            once=False,
            help="A label; repeatable. Of a classifier's labels only these are kept.",
        ),
    ] = None,
    template: Annotated[
        list[str] | None,
        option(
            "Labels",
            "--template",
            metavar="TEXT",
            once=False,
            default='"a photo of a {label}"',
            help="A text with {label} in it; repeatable. A label is the mean of its texts.",
        ),
    ] = None,
    top: Annotated[
        int, number_option("Labels", "--top", least=1, help="The labels of each row at most.")
    ] = 5,
    raw_text: RawText = False,
) -> None:
    question = tasks.classify(label or (), templates=template or (), top=top, raw_text=raw_text)
    embed_and_exit(sources, question, options)
