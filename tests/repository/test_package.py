"""The built package: its files, its metadata and its two commands."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder
from trove_classifiers import classifiers

from pgcli import __version__

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def wheel_files():
    files = WheelBuilder(str(ROOT)).recurse_included_files()
    return {file.distribution_path for file in files}


def test_wheel_holds_the_package_its_types_and_the_built_in_models(wheel_files):
    assert {"pgcli/__init__.py", "pgcli/py.typed"} <= wheel_files
    assert {"pgcli/builtin/model.safetensors", "pgcli/builtin/tokenizer.json"} <= wheel_files
    towers = {f"pgcli/builtin_towers/{name}" for name in ("model.safetensors", "tokenizer.json")}
    assert towers <= wheel_files
    assert "pgcli/results/page/shell.html" in wheel_files


def test_wheel_holds_nothing_but_the_package(wheel_files):
    assert {name.partition("/")[0] for name in wheel_files} == {"pgcli"}


def test_metadata_declares_posix_only():
    assert set(PROJECT["classifiers"]) <= classifiers
    systems = [name for name in PROJECT["classifiers"] if name.startswith("Operating System")]
    assert systems == ["Operating System :: POSIX"]


@pytest.mark.parametrize("name", ["pgcli", "paligemma-cli"])
def test_both_commands_run_the_program(name):
    target = EntryPoint(name, PROJECT["scripts"][name], "console_scripts")
    script = f"import sys; from {target.module} import {target.attr}; sys.exit({target.attr}())"
    command = [sys.executable, "-c", script, "--version"]
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60, check=True)
    assert run.stdout == f"pgcli {__version__}\n"


def test_commands_install_under_constraints_of_every_dependency():
    for page in ("README.md", "CONTRIBUTING.md"):
        commands = re.findall(r"pip install .*", (ROOT / page).read_text(encoding="utf-8"))
        assert any("-c constraints.txt" in command for command in commands), page
    pinned = re.findall(r"^([\w-]+)==", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    extras = PROJECT["optional-dependencies"]
    required = PROJECT["dependencies"] + extras["dev"] + extras["lessons"]
    assert {re.split(r"[<>=]", line)[0] for line in required} <= set(pinned)
