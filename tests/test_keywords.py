"""Errors of calls from Python: they name keywords, not options of the command line."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pgcli
from pgcli.api.keywords import OF_ENGINE, declared, in_keywords
from pgcli.errors import PgcliError, UsageError
from pgcli.pipeline import model as running
from pgcli.training.options import RECORDS
from tests.support import pretend
from tests.support.awkward import drawing, encoded

pytestmark = pytest.mark.usefixtures("clean_environment")
#: A text about options of the command line, and the same about keywords.
TEXTS = {
    "another -o leaves it alone, --overwrite replaces it": (
        "another output leaves it alone, overwrite=True replaces it"
    ),
    "--dtype bfloat16, or --quantize int8": 'dtype="bfloat16", or quantize="int8"',
    "--device cpu has room": 'device="cpu" has room',
    "--batch-size with a smaller number": "batch_size with a smaller number",
    "name it with a slash at its end: -o rows/": (
        'name it with a slash at its end: output="rows/"'
    ),
    "run the command without --shard": "run the command without shard",
    "--limit 16 measures it": "limit=16 measures it",
    "name a local folder: --model DIR": "name a local folder: model=DIR",
    "for other images, --model google/siglip-base-patch16-224": (
        'for other images, model="google/siglip-base-patch16-224"'
    ),
    'write --prompt "what is this?"': 'write prompt="what is this?"',
    "--max-errors 100% allows any number": 'max_errors="100%" allows any number',
    "open the page, then `hf auth login --force`": "open the page, then `hf auth login --force`",
    "pgcli segment --mask-decoder FILE decodes them": (
        "pgcli segment --mask-decoder FILE decodes them"
    ),
    "a file named '--limit' and a--limit": "a file named '--limit' and a--limit",
    "--local-dir is none of ours": "--local-dir is none of ours",
}


@pytest.mark.parametrize("text", TEXTS)
def test_options_are_named_as_keywords(text):
    assert in_keywords(text, declared(RECORDS), {}) == TEXTS[text]


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
        "overwrite=True does not go with shard",
    ),
    "no folder": (lambda: run(shard="0/2"), 'output="rows/"'),
    "settings": (lambda: run_again(lang="de"), "another output leaves it alone; overwrite=True"),
    "errors": (lambda: run(on_error="stop"), 'on_error="record"'),
    "dtype": (lambda: run(dtype="float64"), "dtype: 'float64' is not one of"),
    "required": (lambda: run("detect"), "object: What to find"),
    "column": (lambda: run(keep=["a"]), "only manifests have columns"),
    "address": (
        lambda: pgcli.run("caption", "s3://a/b.png", output="rows.jsonl", model="demo"),
        "allow_urls=True reads it",
    ),
    "train": (
        lambda: pgcli.train("photos", output="out", model="demo", epochs=1, steps=1),
        "epochs and steps both say",
    ),
    "load": (lambda: pgcli.load("no-such-model"), "name a folder with config.json"),
    "quantize": (lambda: pgcli.load("demo", quantize="fp8", device="cpu"), 'quantize="fp8" is'),
}


@pytest.mark.parametrize("name", REFUSED)
def test_errors_of_python_name_keywords(name, photos):
    call, text = REFUSED[name]
    with pytest.raises(PgcliError) as refused:
        call()
    shown = f"{refused.value} {refused.value.hint}"
    assert text in shown
    assert not re.search(r"(?<!\w)--?[a-z]", shown)


def test_errors_of_an_engine_name_keywords_of_its_methods(photos):
    engine = pgcli.load("demo", device="cpu")
    with pytest.raises(UsageError) as refused:
        engine.ask("photos", "which?", choices=["yes"])
    assert refused.value.hint == "choices yes choices no"
    rows = engine.ask(iter([{"image": "photos/a.png"}]))  # checked as it is taken
    with pytest.raises(UsageError) as late:
        next(rows)
    assert "--" not in f"{late.value} {late.value.hint}"
    with pytest.raises(UsageError) as towers:
        engine.score("photos", [])
    assert 'write texts="a red car"' in towers.value.hint
    assert OF_ENGINE["text"] == "texts"


def test_answers_can_be_left_early(photos):
    answers = pgcli.load("demo", device="cpu").caption("photos")
    next(answers)
    answers.close()  # type: ignore[attr-defined]
