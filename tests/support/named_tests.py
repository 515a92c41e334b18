"""The tests that docs pages and tables name."""

import ast
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[1]


@cache
def known_in(name: str) -> set[tuple[str, ...]]:
    """The classes and test names in a file of tests/, or in all files with its name."""
    known: set[tuple[str, ...]] = set()
    for file in TESTS.rglob(name):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.FunctionDef):
                known.add((node.name,))
            elif isinstance(node, ast.ClassDef):
                known.add((node.name,))
                known |= {(node.name, f.name) for f in node.body if isinstance(f, ast.FunctionDef)}
    return known
