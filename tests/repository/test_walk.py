"""The calls of `pgcli caption folder -o rows.jsonl` are in docs/dev/architecture.md, in order."""

import json
import os
import re
import subprocess
import sys
import textwrap

import pytest

from tests.support.runs import EXAMPLES, ROOT

RECORD = """
import json, sys, threading
first = {}
def profile(frame, event, arg):
    if event == "call" and "/pgcli/" in frame.f_code.co_filename:
        module = frame.f_globals.get("__name__", "").removeprefix("pgcli.")
        first.setdefault(f"{module}.{frame.f_code.co_qualname}", len(first))
threading.setprofile(profile)
sys.setprofile(profile)
from pgcli.__main__ import main
try:
    code = main()
finally:
    sys.setprofile(None)
    print(json.dumps(sorted(first, key=first.get)))
"""


@pytest.mark.slow
def test_calls_happen_in_the_documented_order(tmp_path):
    page = (ROOT / "docs" / "dev" / "architecture.md").read_text(encoding="utf-8")
    walk = page.split("## The calls of a run")[1].split("## The engine")[0]
    documented = re.findall(r"^\d+\. `([\w.]+)`", walk, re.M)
    assert len(documented) == 15
    functions = (name.rpartition(".")[0] for name in documented)
    assert len({re.sub(r"\.[A-Z]\w*", "", module) for module in functions}) <= 14  # files
    command = [
        "caption",
        str(EXAMPLES),
        "--model",
        "demo",
        "-o",
        str(tmp_path / "rows.jsonl"),
        "-q",
    ]
    run = subprocess.run(
        [sys.executable, "-c", RECORD, *command, "--workers", "0"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    calls = json.loads(run.stdout)
    assert [name for name in documented if name not in calls] == []
    assert sorted(documented, key=calls.index) == documented


def test_documented_loop_equals_that_of_the_engine():
    page = (ROOT / "docs" / "dev" / "architecture.md").read_text(encoding="utf-8")
    documented = page.split("## The engine")[1].split("```python\n")[1].split("```")[0]
    source = (ROOT / "pgcli" / "engine" / "engine.py").read_text(encoding="utf-8")
    assert textwrap.indent(documented, "        ") in source
