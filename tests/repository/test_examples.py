"""Every example in examples/ behaves as its first lines describe."""

import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support import forkserver

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def run(*command: str, variables: Mapping[str, str] | None = None) -> str:
    environment = os.environ | (variables or {})
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_six_lines_of_python_caption_and_detect():
    lines = run(sys.executable, str(EXAMPLES / "six_lines.py")).splitlines()
    assert lines[0].startswith("examples/images/one.png ")
    assert lines[1].startswith("examples/images/turned.jpg ")
    assert "Box(label='star'" in lines[2]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed on this machine")
def test_shell_pipeline_asks_two_questions_of_every_png(tmp_path):
    variables = forkserver.install(tmp_path / "bin")
    lines = run("sh", str(EXAMPLES / "pipeline.sh"), variables=variables).splitlines()
    images = sorted(f"examples/images/{file.name}" for file in EXAMPLES.glob("images/*.png"))
    assert [line.split("\t")[0] for line in lines] == [p for p in images for _ in range(2)]
    assert all(len(line.split("\t")) == 3 for line in lines)


@pytest.mark.parametrize("file", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda f: f.stem)
def test_a_benchmark_can_be_imported(file):
    """A name that a benchmark imports may be moved without anyone running the benchmark."""
    importlib.import_module(f"benchmarks.{file.stem}")
