"""The examples of CONTRIBUTING.md, installed as it says."""

import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pgcli import output

PAGE = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()


def installed(heading: str, folder: ModuleType, known: Any, patch: pytest.MonkeyPatch) -> None:
    """Import the example as a module of the folder and add its line to the table."""
    part = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    code = re.findall(r"^```python\n(.*?)^```$", part, re.M | re.S)[0]
    line = re.findall(r"and in `\w+.py` `(.*?)`", part)[0]
    ((key, target),) = json.loads("{" + line + "}").items()
    name = f"{folder.__name__}.{target.partition('.')[0]}"
    module = ModuleType(name)
    exec(compile(code, name, "exec"), module.__dict__)
    patch.setitem(sys.modules, name, module)
    patch.setitem(known, key, target)


def install_output_format(before=lambda: None, patch=None):
    installed("One more output format", output, output.FORMATS, patch or pytest.MonkeyPatch())
    before()
