"""Reads the table of faults, and plants them in a copy of the repository.

Each room has a file: below a fault's name, `what` goes wrong, the `file` of pgcli/ that it is in,
the `old` text, which is there once, the `new` one, and the `tests` that must fall.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
NOT_COPIED = shutil.ignore_patterns(
    ".git", ".venv", "runs", "dist", ".*_cache", "__pycache__", ".hypothesis"
)
FALLEN = re.compile(r"^(?:FAILED|ERROR) tests/(\S+?::[\w:]+(?:\[\S*\])?)", re.M)
TEST_SECONDS, RUN_SECONDS = 120, 600


@dataclass(frozen=True)
class Fault:
    """A text of a file of the program, and the wrong one that replaces it."""

    name: str
    room: str
    what: str
    file: str
    old: str
    new: str
    tests: Sequence[str]


def read_faults() -> list[Fault]:
    """The faults of all rooms."""
    return [
        Fault(name, file.stem, **values)
        for file in sorted(Path(__file__).parent.glob("*.toml"))
        for name, values in tomllib.loads(file.read_text()).items()
    ]


class Copy:
    """A copy of the repository, in which one fault at a time is planted."""

    def __init__(self, folder: Path):
        self.folder = folder / "copy"
        shutil.copytree(ROOT, self.folder, ignore=NOT_COPIED)

    def missed(self, fault: Fault) -> list[str]:
        """The tests that do not fall where the fault is planted."""
        planted, original = self.folder / "pgcli" / fault.file, ROOT / "pgcli" / fault.file
        planted.write_text(original.read_text().replace(fault.old, fault.new))
        try:
            fallen = self.fallen(fault.tests)
        finally:
            shutil.copy2(original, planted)  # with its time, so that the bytecode is made again
        return [test for test in fault.tests if not any(is_of(test, found) for found in fallen)]

    def fallen(self, tests: Iterable[str]) -> set[str]:
        """The failed tests; empty if pytest does not finish."""
        names = [f"tests/{test}" for test in dict.fromkeys(tests)]
        options = ["-q", "-rfE", "--tb=no", "-p", "no:cacheprovider", "-o", "addopts="]
        options += ["-o", f"timeout={TEST_SECONDS}", *["-x"] * (len(names) == 1)]
        try:
            process = subprocess.run(
                [sys.executable, "-m", "pytest", *options, *names],
                cwd=self.folder,
                # of hypothesis the same examples each time
                env=os.environ | {"PYTHONPATH": str(self.folder), "CI": "true"},
                capture_output=True,
                text=True,
                check=False,
                timeout=RUN_SECONDS,
            )
        except subprocess.TimeoutExpired:
            return set()
        return set(FALLEN.findall(process.stdout))


def is_of(test: str, found: str) -> bool:
    """Whether a test that has fallen is the one of this name, or one of its parameters."""
    return found == test or found.startswith(f"{test}[")
