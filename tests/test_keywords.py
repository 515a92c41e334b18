"""Errors of calls from Python: they name keywords, not options of the command line."""

import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pgcli
from pgcli.errors import PgcliError, UsageError, called_from_python
from pgcli.run import model as running
from tests.support import pretend
from tests.support.awkward import drawing, encoded

pytestmark = pytest.mark.usefixtures("clean_environment")
#: A text with options as errors have them; as on the command line, and as in Python.
TEXTS = {
    "another <-o> leaves it alone, <--overwrite> replaces it": (
        "another -o leaves it alone, --overwrite replaces it",
        "another output leaves it alone, overwrite=True replaces it",
    ),
    "<--dtype bfloat16>, or <--quantize int8>": (
        "--dtype bfloat16, or --quantize int8",
        'dtype="bfloat16", or quantize="int8"',
    ),
    "use a smaller <--batch-size=>": (
        "use a smaller --batch-size",
        "use a smaller batch_size",
    ),
    "name it: <-o rows/>": ("name it: -o rows/", 'name it: output="rows/"'),
    "name a folder: <--model DIR>": ("name a folder: --model DIR", "name a folder: model=DIR"),
    "`hf auth login --force`, a < b > c": ("`hf auth login --force`, a < b > c",) * 2,
}


@pytest.mark.parametrize("text", TEXTS)
def test_options_are_spelled_where_an_error_is_shown(text):
    error = UsageError(text, hint=text)
    shown, from_python = TEXTS[text]
    assert (str(error), error.hint) == (shown, shown)

    @called_from_python
    def refuse() -> None:
        raise error

    with pytest.raises(UsageError) as refused:
        refuse()
    assert (str(refused.value), refused.value.hint) == (from_python, from_python)
    assert traceback.format_exception(refused.value)[-1] == f"hint: {from_python}\n"


@pytest.fixture
def photos(tmp_path, monkeypatch) -> None:
    """The current folder, with an image, one that is broken, and a model without loading."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(running, "load_engine", pretend.load_engine)
    Path("photos").mkdir()
    Path("photos/a.png").write_bytes(encoded(drawing(40, 30), "PNG"))
    Path("photos/b.png").write_bytes(b"no image")


def run(command: Any = "caption", output: str = "rows.jsonl", **options: Any) -> Any:
    return pgcli.run(command, "photos", output=output, **{"model": "demo", **options})


def run_again(**options: Any) -> Any:
    run()
    return run(**options)


#: A call that is refused, and what the message or the hint says.
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "excluded": (
        lambda: run(output="rows/", shard="0/2", overwrite=True),
        "overwrite=True does not work with shard",
    ),
    "no folder": (lambda: run(shard="0/2"), 'output="rows/"'),
    "settings": (
        lambda: run_again(lang="de"),
        "choose another output, or replace it with overwrite=True",
    ),
    "errors": (lambda: run(on_error="stop"), 'on_error="record"'),
    "required": (lambda: run("detect"), "object: Object to find"),
    "address": (
        lambda: pgcli.run("caption", "s3://a/b.png", output="rows.jsonl", model="demo"),
        "pgcli reads URLs only with allow_urls=True",
    ),
    "train": (
        lambda: pgcli.train("photos", output="out", model="demo", epochs=1, steps=1),
        "epochs and steps both set",
    ),
    "load": (lambda: pgcli.load("no-such-model"), "name a folder with config.json"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_errors_of_python_name_keywords(name, photos):
    call, text = REFUSED[name]
    with pytest.raises(PgcliError) as refused:
        call()
    shown = f"{refused.value} {refused.value.hint}"
    assert text in shown
    assert not re.search(r"(?<!\w)--?[a-z]", shown)


def test_command_line_spells_the_same_errors_as_options(photos, cli):
    Path("rows.jsonl").touch()
    lines = {
        "caption photos --model demo -o rows/ --shard 0/2 --overwrite": "--overwrite does not work",
        "caption photos --model demo --shard 0/2 -o a.jsonl": "in a slash: -o rows/",
        "caption photos --model demo --on-error stop -o b.jsonl": "--on-error record",
        "ask photos --model demo --prompt a --choice yes": "--choice yes --choice no",
        "caption photos --model demo -o -": "",
    }
    for line, text in lines.items():
        said = " ".join(cli(line)[2].split())
        assert text in said
        assert "<-" not in said
