"""What a run that resumes compares with the run before: files of models, and the folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import pgcli
from pgcli.cli.job import loading
from pgcli.cli.job.run_settings import MODEL_CODE, code_digest
from pgcli.cli.main import main
from pgcli.sinks.reader import read_results
from pgcli.state.state_folder import RUN, state_folder
from tests.support import pretend
from tests.support.runs import EXAMPLES

OUTPUT = Path("rows.jsonl")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(loading, "load_model", pretend.load_model)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def caption(limit: int, *options: str) -> int:
    return main(["caption", str(EXAMPLES), "-o", str(OUTPUT), "--limit", str(limit), *options])


@pytest.fixture
def adapter() -> Path:
    """An adapter's folder; the pretended model does not read it."""
    made = Path("adapter")
    made.mkdir()
    made.joinpath("adapter_model.safetensors").write_bytes(b"weights")
    made.joinpath("adapter_config.json").write_text('{"lora_alpha": 1}')
    return made


def test_run_with_an_adapter_of_another_configuration_is_not_resumed(
    adapter: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert caption(2, "--adapter", "adapter") == 0
    adapter.joinpath("adapter_config.json").write_text('{"lora_alpha": 400}')
    assert caption(4, "--adapter", "adapter") == 13
    assert "adapter_files: " in capsys.readouterr().err
    assert len(list(read_results(OUTPUT))) == 2


def test_older_run_with_an_adapter_is_resumed_and_records_its_files(adapter: Path) -> None:
    assert caption(2, "--adapter", "adapter") == 0
    file = state_folder(OUTPUT) / RUN
    record = json.loads(file.read_text())
    del record["settings"]["adapter_files"]
    file.write_text(json.dumps(record))
    assert caption(4, "--adapter", "adapter") == 0
    assert len(list(read_results(OUTPUT))) == 4
    adapter.joinpath("adapter_config.json").write_text('{"lora_alpha": 400}')
    assert caption(6, "--adapter", "adapter") == 13


def test_output_is_checked_from_a_deleted_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert caption(2) == 0
    deleted = folder / "deleted"
    deleted.mkdir()
    monkeypatch.chdir(deleted)
    deleted.rmdir()
    capsys.readouterr()
    assert main(["check", str(folder / OUTPUT)]) == 2
    out, err = capsys.readouterr()
    assert "the current folder cannot be read" in err
    assert "difference" not in out + err


def test_digest_of_the_code_depends_on_names_and_bytes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(pgcli.__file__).parent
    assert all(root.joinpath(name).exists() for name in MODEL_CODE)
    engine = folder / "engine"
    engine.mkdir()
    monkeypatch.setattr(pgcli, "__file__", str(folder / "__init__.py"))
    digests = set()
    for one, other in (("a = 1", "b = 2"), ("b = 2", "a = 1"), ("a = 1b = 2", "")):
        (engine / "one.py").write_text(one)
        (engine / "other.py").write_text(other)
        digests.add(code_digest())
    (folder / "parsing.py").write_text("")
    assert len(digests | {code_digest()}) == 4


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet", "rows/"])
def test_refused_run_leaves_the_output_to_the_command_that_made_it(name: str) -> None:
    shutil.copytree(EXAMPLES, "more")
    run = ["--model", "demo", "-o", name, "--workers", "0", "--quiet"]
    assert main(["caption", str(EXAMPLES), *run, "--limit", "2"]) == 0
    state = state_folder(Path(name))
    before = {file.name for file in state.glob("files-*")}
    # ids have the names of the folders if there are two
    assert main(["caption", str(EXAMPLES), "more", *run]) == 13
    assert {file.name for file in state.glob("files-*")} == before
    assert main(["caption", str(EXAMPLES), *run]) == 0
    assert main(["check", name]) == 0


@pytest.mark.parametrize(("sample", "rows"), [(3, 3), (12, 12), (14, 14), (99, 24)])
def test_sample_of_a_folder_stays_the_same_as_files_arrive(sample: int, rows: int) -> None:
    shutil.copytree(EXAMPLES, "photos")
    run = ["caption", "photos", "-o", "rows.jsonl", "--workers", "0", "--quiet"]
    assert main([*run, "--sample", str(sample), "--limit", "2"]) == 0
    first = list(read_results(OUTPUT))
    shutil.copytree(EXAMPLES, "photos/more")
    assert main([*run, "--sample", str(sample)]) == 0
    found = list(read_results(OUTPUT))
    assert (found[:2], len(found)) == (first, rows)
    assert main(["check", "rows.jsonl"]) == 0
