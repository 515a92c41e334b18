"""`pgcli slurm` prints a batch script whose tasks share a run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from PIL import Image

from pgcli.cli.main import main

pytestmark = pytest.mark.usefixtures("clean_environment")
RUN = ("caption", "my photos", "--model", "demo", "--no-timing", "-o", "rows/")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder, with images."""
    monkeypatch.chdir(tmp_path)
    Path("my photos").mkdir()
    for number in range(5):
        Image.new("RGB", (8, 8)).save(f"my photos/{number}.png")


def script(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert main(["slurm", *options]) == 0
    return capsys.readouterr().out


def test_script_is_a_job_array_of_shards(capsys: pytest.CaptureFixture[str]) -> None:
    text = script(capsys, "--tasks", "4", "--gpus", "2", "--partition", "long", *RUN)
    Path("job.sh").write_text(text)
    assert subprocess.run(["bash", "-n", "job.sh"], check=False, timeout=60).returncode == 0
    settings = [line for line in text.splitlines() if line.startswith("#SBATCH")]
    for name in ("array=0-3", "gres=gpu:2", "partition=long", "cpus-per-task=8", "requeue"):
        assert f"#SBATCH --{name}" in settings
    assert text.startswith("#!/bin/bash\n")
    line = " caption --shard auto 'my photos' --model demo --no-timing -o rows/\n"
    assert text.endswith(line)
    assert "gres" not in script(capsys, "--gpus", "0", *RUN)


def test_name_that_begins_with_a_dash_stays_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    text = script(capsys, "caption", "-o", "rows/", "--", "-photos")
    assert text.endswith(" caption --shard auto -o rows/ -- -photos\n")


@pytest.mark.nightly
def test_tasks_of_the_script_compute_all_rows(capsys: pytest.CaptureFixture[str]) -> None:
    text = script(capsys, "--tasks", "2", *RUN)
    Path("job.sh").write_text(text.replace("-P -m pgcli", "-m tests.support.pretend"))
    for task in range(2):
        array = {"ID": task, "COUNT": 2, "MIN": 0, "MAX": 1}
        variables = {f"SLURM_ARRAY_TASK_{name}": str(value) for name, value in array.items()}
        code = subprocess.run(
            ["bash", "job.sh"], env=os.environ | variables, check=False, timeout=120
        ).returncode
        assert code == 0
    assert pq.read_table("rows")["index"].to_pylist() == list(range(5))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("caption", "my photos", "-o", "rows.jsonl"), "a folder of Parquet files"),
        (("caption", "my photos"), "a folder of Parquet files"),
        ((*RUN, "--shard", "0/2"), "--shard does not go with slurm"),
        ((*RUN, "--overwrite"), "--overwrite does not go with slurm"),
        (("caption", "-", "-o", "rows/"), "no standard input to share"),
        ((*RUN, "--batch", "2"), "--batch"),
        (("status", "rows/"), "'status' is not a command whose rows"),
        (("--partition", "a b", *RUN), "cannot be a setting of SLURM"),
    ],
)
def test_commands_that_no_array_can_run_are_refused(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["slurm", *words]) == 2
    assert message in capsys.readouterr().err
