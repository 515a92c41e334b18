"""Options that do not apply: ignored silently, ignored with one line, or an error."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

import pgcli
from pgcli.api.runs import outside_values
from pgcli.cli.app import PANELS, declaration
from pgcli.declare import Option, options_of, parse_keywords
from pgcli.errors import UsageError, in_flags
from pgcli.results import read
from pgcli.run import model as running
from pgcli.run.checks import is_stream
from pgcli.run.model import load_engine
from pgcli.run.request import RunRequest, make_request, records_of

#: What makes a question, by command.
NEEDED: dict[str, dict[str, Any]] = {
    "ask": {"prompt": "what?"},
    "detect": {"object": "cat"},
    "segment": {"object": "cat"},
    "score": {"text": "a cat"},
}
COMMANDS = ("caption", "ask", "detect", "segment", "ocr", "embed", "score", "classify")


@pytest.fixture(autouse=True)
def folder(workdir, pretended) -> Path:
    """The current folder, with an image, and a pretended model."""
    Path("photos").mkdir()
    Image.new("RGB", (40, 30), "red").save("photos/a.png")
    return workdir


def request(command: str, typed: dict[str, Any], outside: dict[str, Any]) -> RunRequest:
    records, typed = records_of(command), NEEDED.get(command, {}) | typed
    values = parse_keywords(records, outside) | parse_keywords(records, typed)
    return make_request(command, ["photos"], values, typed=typed)


#: A command, an option that does not apply to it, and other options.
WITHOUT_EFFECT: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("caption", {"rows_per_file": 3}, {"output": "rows.jsonl"}),
    ("caption", {"top_p": 0.5}, {}),
    ("caption", {"top_k": 5}, {}),
    ("ask", {"temperature": 1}, {"choice": ["yes", "no"]}),
    ("ask", {"max_new_tokens": 3}, {"choice": ["yes", "no"]}),
]
#: The same, if rows or files would differ from the request.
CONTRADICTORY: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("embed", {"quantize": "int8"}, {}),
    ("classify", {"adapter": "me/lora"}, {}),
    ("caption", {"revision": "main"}, {}),
    ("caption", {"revision": "main"}, {"model": "demo"}),
    ("score", {"revision": "main"}, {}),
    ("caption", {"ray": "local"}, {"output": "rows.jsonl"}),
    ("caption", {"shard": "0/2"}, {"output": "rows.jsonl"}),
    ("caption", {"shard": "0/2"}, {"output": "rows/", "ray": "local"}),
    ("caption", {"retry_errors": True}, {"output": "rows/", "shard": "0/2"}),
    ("caption", {"draw": "drawn"}, {"output": "rows/", "shard": "0/2"}),
    ("caption", {"overwrite": True}, {"output": "rows/", "shard": "0/2"}),
    ("caption", {"retry_errors": True}, {}),
    ("caption", {"retry_changed": True}, {}),
    ("caption", {"retry_changed": True}, {"output": "rows/", "shard": "0/2"}),
    ("caption", {"retry_errors": True}, {"output": "rows.txt", "format": "text"}),
    ("caption", {"draw": "drawn"}, {"output": "rows/", "ray": "local"}),
    ("caption", {"sidecar": ".txt"}, {"output": "rows/", "shard": "0/2"}),
    ("caption", {"format": "jsonl"}, {"output": "rows.parquet"}),
    ("caption", {"engines": 2}, {"device": "mps"}),
    ("caption", {"engines": 2}, {"device": "cuda:1"}),
    ("embed", {"draw": "drawn"}, {}),
    ("score", {"sidecar": ".txt"}, {}),
    ("ask", {"sidecar": ".txt"}, {"prompt": ["what?", "where?"]}),
]
#: The same, if reading the input raises the error: photos have no columns.
WITHOUT_COLUMNS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("caption", {"keep": ["a"]}, {}),
    ("embed", {"keep": ["*"]}, {}),
]


def values_of(found: RunRequest, name: str) -> tuple[object, object]:
    """The value of an option in a request, and its default."""
    records = (found.model, found.input, found.answering, found.output, found.running)
    record = next(one for one in records if hasattr(one, name))
    option = next(option for option in options_of(type(record)) if option.name == name)
    return getattr(record, name), option.default


@pytest.mark.parametrize(("command", "option", "rest"), WITHOUT_EFFECT)
def test_ignored_option_prints_one_line(command, option, rest):
    found = request(command, rest | option, {})
    (line,) = found.ignored
    (name,) = option
    assert in_flags(line).startswith(f"ignored: --{name.replace('_', '-')} ")
    value, default = values_of(found, name)
    assert value == default


@pytest.mark.parametrize(("command", "option", "rest"), CONTRADICTORY)
def test_contradicting_option_exits_with_2(command, option, rest):
    with pytest.raises(UsageError) as refused:
        is_stream(request(command, rest | option, {}))
    assert refused.value.hint
    (name,) = option
    assert f"--{name.replace('_', '-')}" in f"{refused.value} {refused.value.hint}"


@pytest.mark.parametrize(
    ("command", "option", "rest"), [*WITHOUT_EFFECT, *CONTRADICTORY, *WITHOUT_COLUMNS]
)
def test_inapplicable_variable_is_ignored_silently(command, option, rest):
    found = request(command, rest, option)
    value, default = values_of(found, next(iter(option)))
    assert (value, found.ignored) == (default, ())


def test_include_does_not_apply_to_texts():
    values = {"text": ("a",), "include": ("*.png",)}
    assert make_request("embed", [], values, typed=["text"]).input.include == ()
    with pytest.raises(UsageError, match="--include applies to images, not to texts"):
        make_request("embed", [], values, typed=values)


def test_typed_option_wins_over_an_untyped_one():
    found = request("score", {"text": "a"}, {"text_column": "caption"}).question
    assert (found.texts, found.text_column) == (("a",), None)  # type: ignore[union-attr]
    typed = {"choices_column": "options"}
    found = request("ask", typed, {"choice": ["a", "b"]}).question
    assert (found.choices, found.choices_column) == ((), "options")
    found = request("embed", {}, {"texts_file": "texts.txt", "raw_text": True}).question
    assert not found.embeds_texts
    with pytest.raises(UsageError, match="--text and --text-column exclude each other"):
        request("score", {"text": "a", "text_column": "b"}, {})


def test_keep_from_the_environment_applies_to_manifests_only():
    Path("rows.jsonl").write_text('{"image": "photos/a.png", "a": 1}\n')
    Path("data").mkdir()
    pyarrow.parquet.write_table(pyarrow.table({"image": ["a.png"], "a": [1]}), "data/0.parquet")
    kept = {
        "rows.jsonl": ("a",),
        "data": ("a",),
        "*.jsonl": ("a",),
        "-": ("a",),
        "missing": ("a",),
        "photos": (),
        "photos/a.png": (),
        "photos/*": (),
    }
    for source, columns in kept.items():
        assert make_request("caption", [source], {"keep": ("a",)}).input.keep == columns
    both = make_request("caption", ["rows.jsonl", "photos"], {"keep": ("a",)})
    assert both.input.keep == ()
    for source, column in {"rows.jsonl": "options", "photos": None}.items():
        values = {"prompt": ("what?",), "choices_column": "options"}
        assert make_request("ask", [source], values).question.choices_column == column


#: Values of options of texts and numbers that take none of NUMBERS; some contradict others.
VALUES = {
    "model": "demo",
    "adapter": "lora",
    "mask_decoder": "masks.npz",
    "device": "cpu",
    "dtype": "float32",
    "quantize": "int8",
    "engines": "auto",
    "ray": "local",
    "keep": "a,source",
    "shard": "0/2",
    "workers": "1",
    "max_pixels": "100000",
    "prompts_file": "prompts.txt",
    "texts_file": "prompts.txt",
    "label_file": "prompts.txt",
    "schema": "schema.json",
    "lang": "de",
    "region": "1,2,3,4",
    "dtype_out": "float16",
    "output": "rows.jsonl",
    "draw": "drawn",
    "format": "jsonl",
    "sidecar": ".txt",
    "on_error": "record",
    "config": "c.toml",
    "log_format": "text",
    "time": "1:00:00",
}
NUMBERS = ("0.5", "3")


def value_for(option: Option) -> str:
    """A valid value of the option, as text."""
    if option.kind is bool:
        return "1"
    for number in NUMBERS if option.name not in VALUES else ():
        with suppress(ValueError):
            option.read(number)
            return number
    return VALUES[option.name]


def set_all_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set all options of all commands, by variables and in a file; files that they name exist."""
    Path("prompts.txt").write_text("how many?\n")
    Path("schema.json").write_text('{"type":"object","properties":{"a":{"const":1}}}')
    Path("masks.npz").touch()
    Path("lora").mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        Path("lora", name).write_text("{}")
    names = [name for summaries in PANELS.values() for name in summaries]
    keys = {}
    for record in {record for name in names for record in declaration(name).records}:
        for option in options_of(record):
            if option.variable is not None:
                monkeypatch.setenv(option.variable, value_for(option))
            elif not option.own and (not option.repeat or option.commas):
                keys[option.key] = value_for(option)
    keys["dry-run"] = "0"
    Path("c.toml").write_text("".join(f'{key} = "{value}"\n' for key, value in keys.items()))
    monkeypatch.setenv("PGCLI_CONFIG", "c.toml")


@pytest.mark.parametrize("command", COMMANDS)
def test_configuration_file_with_all_options_breaks_no_command(command, monkeypatch, cli):
    set_all_options(monkeypatch)
    if command in ("embed", "score", "classify"):
        monkeypatch.setenv("PGCLI_MODEL", "demo-towers")
        monkeypatch.setattr(running, "load_engine", load_engine)
    words = [f"--{name}={value}" for name, value in NEEDED.get(command, {}).items()]
    words += ["--config", "c.toml"]
    words += ["--label=cat", "--label=dog"] if command == "classify" else []
    code, _, err = cli(command, "photos", *words)
    assert (code, "ignored" in err) == (0, False), err
    (row, *more) = read("rows.jsonl")
    assert (row.id, row.error, len(more)) == ("a.png", None, command == "ask")


def test_python_reads_the_environment_and_the_file(monkeypatch):
    Path("c.toml").write_text(
        'limit = 1\nlang = "fr"\nno-timing = true\n[caption]\nlang = "de"\nworkers = 0\n'
    )
    monkeypatch.setenv("PGCLI_LIMIT", "7")  # not a variable
    monkeypatch.setenv("PGCLI_WORKERS", "3")
    values = outside_values("caption", records_of("caption"), "c.toml")
    assert values == {"limit": 1, "lang": "de", "no_timing": True, "workers": 3}
    report = pgcli.run("caption", "photos", output="rows.jsonl", model="demo", config="c.toml")
    (row,) = report.read()
    assert (row.prompt, row.vision_ms) == ("caption de", None)
    monkeypatch.setenv("PGCLI_WORKERS", "none")
    with pytest.raises(UsageError, match="PGCLI_WORKERS must be a whole number, not 'none'"):
        pgcli.run("caption", "photos", output="rows.jsonl", model="demo")
