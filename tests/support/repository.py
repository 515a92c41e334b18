"""What tests of the repository share: the tests that pages name, and the skips that CI allows."""

from __future__ import annotations

import ast
import re
from collections import Counter
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


#: Features that a machine may lack: each pattern is searched in the reason of a skip.
ALLOWED = tuple(
    re.compile(pattern)
    for pattern in (
        r"this machine has no CUDA device|needs a CUDA device",
        r"this processor",  # lacks bfloat16, AMX or int8 kernels
        r"this PyTorch",
        r"root may write everywhere",
        r"who may mount",
        r"hundreds of megabytes",
        r"moto\[server\] is not installed",
        r"boto3 is not installed",
        r"Triton is not installed",
        r"groff is not installed",
        r"axe-core is not installed",
        r"axe-core is missing",
        # 79 MB for a few tests: the division of chunks is tested without it
        r"ray is (not )?installed",
    )
)


def unexpected(reasons: Counter[str]) -> list[str]:
    """The reasons that are not allowed, each with how often it occurred."""
    return [
        f"{reason} ({count} x)"
        for reason, count in sorted(reasons.items())
        if not any(pattern.search(reason) for pattern in ALLOWED)
    ]
