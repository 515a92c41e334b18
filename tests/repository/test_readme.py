"""README.md: its links exist, it is short, and its commands are pinned."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_readme_has_no_placeholders() -> None:
    assert "@@" not in README
    assert "TODO" not in README


def test_readme_is_read_in_a_few_minutes() -> None:
    assert len(README.splitlines()) <= 160


def test_commands_install_under_constraints_of_every_dependency() -> None:
    assert README.count("pip install -q -c constraints.txt") == 2
    pinned = re.findall(r"^([\w-]+)==", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = project["dependencies"] + project["optional-dependencies"]["dev"]
    names = {re.split(r"[<>=]", line)[0] for line in required}
    assert names <= set(pinned)
