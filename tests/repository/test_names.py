"""Class names stand once, test names are short, tests import no tests and limit processes."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))
LONGEST = 70  # characters of a test's name


def test_class_name_stands_once_in_the_package() -> None:
    files = defaultdict(list)
    for file in (ROOT / "pgcli").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                files[node.name].append(file.relative_to(ROOT).as_posix())
    assert {name: found for name, found in files.items() if len(found) > 1} == {}


@pytest.mark.parametrize("file", TESTS, ids=lambda file: file.stem)
def test_test_names_are_short(file: Path) -> None:
    names = [
        node.name
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
    assert [name for name in names if len(name) > LONGEST] == []


@pytest.mark.parametrize("file", TESTS, ids=lambda file: file.stem)
def test_no_test_module_imports_another(file: Path) -> None:
    modules = [
        node.module or ""
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
    ]
    assert [one for one in modules if one.rpartition(".")[2].startswith("test_")] == []


def test_every_process_of_a_test_has_a_timeout() -> None:
    waits = {"subprocess.run", "subprocess.check_output", "subprocess.check_call"}
    unlimited = [
        f"{file.name}:{node.lineno}"
        for file in (ROOT / "tests").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and (ast.unparse(node.func) in waits or ast.unparse(node.func).endswith(".communicate"))
        and not {"timeout", None} & {keyword.arg for keyword in node.keywords}
    ]
    assert unlimited == []
