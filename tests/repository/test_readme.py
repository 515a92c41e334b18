"""What README.md says is so: its files are there, its exit codes true, nothing left to fill in."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_file_it_links_to_is_there() -> None:
    links = re.findall(r"\]\(([^)]+)\)", README)
    assert links
    assert [link for link in links if "://" not in link and not (ROOT / link).exists()] == []


def test_nothing_is_left_to_fill_in() -> None:
    assert "@@" not in README
    assert "TODO" not in README


def test_its_exit_codes_are_those_of_the_errors() -> None:
    from pgcli import errors

    told = {int(code) for code in re.findall(r"^\| (\d+) \|", README, flags=re.MULTILINE)}
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    raised = {kind.exit_code for kind in kinds if issubclass(kind, errors.PgcliError)}
    assert raised | {0, 3} == told


def test_its_two_commands_install_under_constraints_that_name_every_dependency() -> None:
    assert README.count("pip install -q -c constraints.txt") == 2
    pinned = re.findall(r"^([\w-]+)==", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = project["dependencies"] + project["optional-dependencies"]["dev"]
    names = {re.split(r"[<>=]", line)[0] for line in asked}
    assert names <= set(pinned)
