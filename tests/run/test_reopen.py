"""The request of an earlier run is rebuilt from its record, without the files that it named."""

import json
from pathlib import Path
from typing import Any

import pytest

from pgcli.declare import parse_keywords
from pgcli.run.request import RunRequest, make_request, records_of
from pgcli.run.state.record import RunRecord, input_settings
from pgcli.run.status import reopened_request

RUNS: list[tuple[str, list[str], dict[str, Any]]] = [
    ("caption", ["photos", "more"], {"lang": "pt-BR", "limit": 3}),
    ("ask", ["photos"], {"prompt": ["a {b}?", "é\udcff"], "prompts_file": "lines.txt"}),
    ("ask", ["rows.csv"], {"choices_column": "options", "keep": ["a", "b"], "id_column": "n"}),
    ("ask", ["-"], {"prompt": "x", "schema": '{"type":"object","properties":{"a":{"const":1}}}'}),
    ("ask", ["-"], {"prompt": "yes?", "choice": ["yes", "no"], "null": True}),
    ("detect", ["photos"], {"object": ["cat", "{dog}"], "each": True, "strict": True}),
    ("detect", ["photos"], {"object": "cat", "region": "1,2,3.5,4", "max_new_tokens": 9}),
    ("segment", ["photos"], {"object": "cat", "mask_decoder": "masks.npz", "min_confidence": 0.1}),
    ("ocr", ["s3://bucket/a"], {"allow_urls": True, "temperature": 0.5}),
    ("embed", [], {"text": "a cat", "texts_file": "lines.txt", "raw_text": True}),
    ("score", ["rows.csv"], {"text_column": "caption", "include": ["*.png", "a,b"]}),
    ("classify", ["photos"], {"label": "cat", "label_file": "lines.txt", "template": "a {label}"}),
]


@pytest.fixture(autouse=True)
def files(workdir: Path) -> None:
    Path("rows.csv").write_text("n,image,a,options,caption\n1,a.png,b,yes|no,a cat\n")
    Path("lines.txt").write_text("one\n\n two \n")


def made(command: str, sources: list[str], options: dict[str, Any]) -> RunRequest:
    values = parse_keywords(records_of(command), options)
    return make_request(command, sources, values, typed=values)


def recorded(request: RunRequest) -> RunRecord:
    """The record of a run, as it is read back from its file."""
    values = json.loads(RunRecord("id", {}, input_settings(request)).to_bytes())
    return RunRecord("id", {}, values["input"])


@pytest.mark.parametrize(("command", "sources", "options"), RUNS)
def test_request_is_rebuilt_from_the_record(command, sources, options, monkeypatch, tmp_path):
    request = made(command, sources, options)
    record = recorded(request)
    for name in ("rows.csv", "lines.txt"):
        Path(name).unlink()
    Path("photos").mkdir()  # a folder, in which keep and choices name no columns
    monkeypatch.setenv("PGCLI_ALLOW_URLS", "1")
    monkeypatch.chdir(tmp_path)
    reopened = reopened_request("rows.jsonl", record)
    assert (reopened.question, reopened.input) == (request.question, request.input)
    assert (reopened.sources, reopened.folder) == (request.sources, request.folder)


def test_record_has_the_given_options():
    assert recorded(made("ask", ["photos"], {"prompts_file": "lines.txt"})).input == {
        "command": "ask",
        "sources": ["photos"],
        "folder": str(Path.cwd()),
        "instructed": False,
        "options": {"prompt": ["one", "two"]},
    }
