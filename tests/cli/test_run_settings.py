"""What a run that resumes compares with the run before: files of models, and the folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pgcli.cli.main import main
from pgcli.output.reader import read_results, state_folder
from pgcli.run import model as running
from tests.support import pretend
from tests.support.runs import EXAMPLES

OUTPUT = Path("rows.jsonl")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(running, "load_engine", pretend.load_engine)
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
    assert "adapter_files: adapter_config.json differs\n" in capsys.readouterr().err
    assert len(list(read_results(OUTPUT))) == 2


def test_setting_that_is_left_out_is_another_setting() -> None:
    ask = ["ask", str(EXAMPLES), "-o", str(OUTPUT), "--model", "demo", "--prompt", "is it a cat?"]
    assert main([*ask, "--limit", "2", "--choice", "yes", "--choice", "no"]) == 0
    assert main([*ask, "--limit", "4"]) == 13


def test_dtype_that_auto_meant_resumes_a_run() -> None:
    assert caption(2, "--model", "demo") == 0
    assert caption(4, "--model", "demo", "--dtype", "float32") == 0
    assert caption(4, "--model", "demo", "--dtype", "bfloat16") == 13


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


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet", "rows/"])
def test_refused_run_leaves_the_output_to_the_command_that_made_it(name: str) -> None:
    shutil.copytree(EXAMPLES, "more")
    run = ["--model", "demo", "-o", name, "--workers", "0", "--quiet"]
    assert main(["caption", str(EXAMPLES), *run, "--limit", "2"]) == 0
    state = state_folder(Path(name))
    before = {file.name for file in (state / "inputs").iterdir()}
    # ids have the names of the folders if there are two
    assert main(["caption", str(EXAMPLES), "more", *run]) == 13
    assert {file.name for file in (state / "inputs").iterdir()} == before
    assert main(["caption", str(EXAMPLES), *run]) == 0
    assert main(["check", name]) == 0
