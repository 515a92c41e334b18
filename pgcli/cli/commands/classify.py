"""pgcli classify: the most probable labels of each image."""

from __future__ import annotations

from pgcli.cli.answering import SOURCES, answer
from pgcli.cli.options import Given, with_options
from pgcli.cli.shared_options import Sources
from pgcli.cli.typer_app import command
from pgcli.run.request.make import records_of


@command(
    "classify",
    SOURCES,
    epilog="$ pgcli classify photos --label cat --label dog -o labels.jsonl\n"
    '$ pgcli classify photos --label cat --label dog --template "my {label}"\n'
    "$ pgcli classify photos --model google/vit-base-patch16-224 --top 3",
)
@with_options(*records_of("classify"))
def classify(sources: Sources, given: Given) -> None:
    answer("classify", sources, given)
