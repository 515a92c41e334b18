"""What a run that resumes compares with the run before: files of models, and the folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgcli.cli.main import main
from pgcli.output.reader import read_results
from tests.support.runs import EXAMPLES

pytestmark = pytest.mark.usefixtures("pretended")
OUTPUT = Path("rows.jsonl")


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


def test_output_is_checked_from_a_deleted_folder(
    workdir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert caption(2) == 0
    deleted = workdir / "deleted"
    deleted.mkdir()
    monkeypatch.chdir(deleted)
    deleted.rmdir()
    capsys.readouterr()
    assert main(["check", str(workdir / OUTPUT)]) == 2
    out, err = capsys.readouterr()
    assert "the current folder cannot be read" in err
    assert "difference" not in out + err
