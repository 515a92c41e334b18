"""The commands that answer: caption, ask, detect, segment, ocr, embed, score and classify."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Mapping, Sequence

import typer

from pgcli.checkpoints.find import DEMO, DEMO_TOWERS
from pgcli.cli.app import missing
from pgcli.cli.options import CliCall, Sources, command
from pgcli.run.questions import WITHOUT_ANSWERS
from pgcli.run.request import make_request, records_of
from pgcli.tasks import MAX_NEW_TOKENS

DETAILS = """SOURCE is any number of folders (searched recursively), image files, quoted globs, \
manifests (.parquet, .csv, .tsv, .jsonl), WebDataset archives (.tar), URLs of any of these \
(--allow-urls), and - for standard input: a path or a JSON object on each line, or the bytes of \
one image. Without SOURCE, standard input is read if it is a pipe."""
EXAMPLES: Mapping[str, str] = {
    "caption": "$ pgcli caption photo.jpg\n"
    "$ pgcli caption photos -o captions.jsonl\n"
    "$ pgcli caption photos --model google/paligemma2-3b-mix-224 -o rows.parquet",
    "ask": '$ pgcli ask photo.jpg --prompt "what is on the table?"\n'
    '$ pgcli ask photos --prompt "is it indoors?" --choice yes --choice no',
    "detect": "$ pgcli detect photo.jpg --object cat --draw drawn\n"
    '$ pgcli detect photos --object cat --object "red car" -o boxes.jsonl',
    "segment": "$ pgcli segment photo.jpg --object cat --draw drawn\n"
    "$ pgcli segment photos --object cat --mask-decoder vae-oid.npz -o masks.jsonl",
    "ocr": "$ pgcli ocr scan.png\n$ find scans -name '*.png' -print0 | pgcli ocr -0 -o texts.jsonl",
    "embed": "$ pgcli embed photos -o vectors.parquet\n"
    '$ pgcli embed --text "a red star" --text "a blue square" -o texts.parquet\n'
    "$ pgcli embed photos --model google/siglip-base-patch16-224 -o vectors.parquet\n"
    "$ pgcli embed report.pdf --model vidore/colpali-v1.3-hf -o pages.parquet",
    "score": '$ pgcli score photos --text "a red star" --text "a blue square"\n'
    "$ pgcli score captions.jsonl --text-column answer -o scores.jsonl",
    "classify": "$ pgcli classify photos --label cat --label dog -o labels.jsonl\n"
    '$ pgcli classify photos --label cat --label dog --template "my {label}"\n'
    "$ pgcli classify photos --model google/vit-base-patch16-224 --top 3",
}


#: Options of rows of text, that other rows do not have.
OF_TEXT = {"adapter", "quantize", "draw", "prompt_column"}
UNUSED = {
    "embed": OF_TEXT - {"adapter"} | {"sidecar"},
    "score": OF_TEXT | {"sidecar"},
    "classify": OF_TEXT,
}


def declare(name: str, examples: str) -> None:
    """Declare one of the commands."""

    @command(
        name,
        DETAILS,
        *records_of(name),
        examples=examples,
        unused=UNUSED.get(name, ()),
        defaults={
            "model": DEMO_TOWERS if name in WITHOUT_ANSWERS else DEMO,
            "max_new_tokens": next(
                (str(n) for task, n in MAX_NEW_TOKENS.items() if task == name), ""
            ),
        },
    )
    def command_body(call: CliCall, sources: Sources = None) -> None:
        answer(name, sources or [], call)


def answer(name: str, sources: Sequence[str], call: CliCall) -> None:
    """Answer what the command asks about every item, then exit with the code of the run."""
    if not sources and not (name == "embed" and {"text", "texts_file"} & call.values.keys()):
        if not is_piped():
            raise missing("argument 'SOURCE'", name)
        sources = ["-"]
    request = make_request(name, sources, call.values, typed=call.typed)
    from pgcli.cli.run_on_screen import run_request  # imports Pillow, which --help does not need

    raise typer.Exit(run_request(request))


for name, examples in EXAMPLES.items():
    declare(name, examples)


def is_piped() -> bool:
    """Whether standard input is a pipe or a file."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # closed, or not a real file
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)
