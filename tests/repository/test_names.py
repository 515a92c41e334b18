"""Class names stand once, names are nouns, tests have short names and import no tests."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
LONGEST = 70  # characters of a test's name
PRONOUNS = {
    *("by", "found", "given", "it", "left", "mine"),
    *("one", "other", "rest", "some", "theirs", "whole"),
}
#: A name is allowed in a module that also has the second: sides of a box, operands of `==`.
ALLOWED_BESIDE = {"left": "top", "other": "__eq__"}
#: The option of `pgcli eval --by`, and a name in the output of `pgcli verify --json`.
PUBLIC_NAMES = {("learning.py", "by"), ("compare.py", "theirs")}
#: Functions that mean the same in each module: a command and what it runs, programs of processes.
SHARED_FUNCTIONS = set("asset bench explain export load main run serve train".split())


def test_class_name_stands_once_in_the_package():
    files = defaultdict(list)
    for file in (ROOT / "pgcli").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                files[node.name].append(file.relative_to(ROOT).as_posix())
    assert {name: found for name, found in files.items() if len(found) > 1} == {}


def test_function_name_stands_once_in_the_package():
    """The plain functions of the GPU's kernels have the names of the kernels."""
    files = defaultdict(set)
    for file in (ROOT / "pgcli").rglob("*.py"):
        if "cuda" not in file.parts:
            for node in ast.parse(file.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                    files[node.name].add(file)
    several = {name for name, places in files.items() if len(places) > 1}
    assert several <= SHARED_FUNCTIONS


def test_imported_constant_or_type_has_one_module():
    """Constants that only their own module reads may share a name."""
    definitions, imports = defaultdict(set), set()
    for file in (ROOT / "pgcli").rglob("*.py"):
        module = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for statement in tree.body:
            if isinstance(statement, ast.ClassDef):
                definitions[statement.name].add(module)
            elif isinstance(statement, ast.Assign | ast.AnnAssign):
                for name in bound_names(statement):
                    definitions[name].add(module)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                imports |= {(node.module, alias.name) for alias in node.names}
    imported = {
        name: [module for module in sorted(modules) if (module, name) in imports]
        for name, modules in definitions.items()
    }
    assert {name: modules for name, modules in imported.items() if len(modules) > 1} == {}


def test_names_of_variables_and_functions_are_nouns():
    """Such as `sequence` or `matches`: a pronoun does not say what it holds."""
    pronouns = []
    for folder in ("pgcli", "benchmarks", "examples"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            names = bound_names(ast.parse(file.read_text(encoding="utf-8")))
            pronouns += [
                f"{file.relative_to(ROOT)}: {name}"
                for name in sorted(names & PRONOUNS)
                if ALLOWED_BESIDE.get(name) not in names and (file.name, name) not in PUBLIC_NAMES
            ]
    assert pronouns == []


def bound_names(tree: ast.AST) -> set[str]:
    """The names of variables, attributes, parameters and functions."""
    names = set()
    for node in ast.walk(tree):
        match node:
            case (
                ast.Name(id=name, ctx=ast.Store())
                | ast.Attribute(attr=name, ctx=ast.Store())
                | ast.arg(arg=name)
                | ast.FunctionDef(name=name)
            ):
                names.add(name)
    return names


def test_tests_have_short_names_and_import_no_other_tests():
    names, modules = [], []
    for file in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                names.append(node.name)
            elif isinstance(node, ast.ImportFrom):
                modules.append(node.module or "")
    assert [name for name in names if len(name) > LONGEST] == []
    assert [name for name in modules if name.rpartition(".")[2].startswith("test_")] == []
