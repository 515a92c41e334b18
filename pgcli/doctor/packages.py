"""Checks the versions of Python and packages, and conflicts with PostgreSQL's pgcli."""

from __future__ import annotations

import shutil
import sys
import sysconfig
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from pgcli.doctor.finding import Finding, bad, ok, warn

DISTRIBUTION = "paligemma-cli"
NAMESAKE = "pgcli"  # the PostgreSQL client's distribution, package and command
PIP = f"{sys.executable} -m pip"


def python() -> Finding:
    """The version and the location of Python."""
    return ok("python", f"{sys.version.split()[0]} in {sys.prefix}")


def requirements() -> Iterator[Finding]:
    """Each required package that is missing or too old; else one finding for all of them."""
    try:
        from packaging.requirements import Requirement

        lines = metadata.requires(DISTRIBUTION) or []
    except (ImportError, metadata.PackageNotFoundError):
        what = f"pgcli runs from {Path(__file__).parents[1]}, not installed"
        yield warn("packages", what, f"{PIP} install -e . in the repository's folder")
        return
    required = [r for r in map(Requirement, lines) if r.marker is None or r.marker.evaluate()]
    problems = 0
    for requirement in required:
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            version = ""
        if not version or not requirement.specifier.contains(version, prereleases=True):
            problems += 1
            what = f"{version}, and {requirement} is required" if version else "not installed"
            yield bad(requirement.name, what, f"{PIP} install '{requirement}'")
    if not problems:
        own = f"pgcli {metadata.version(DISTRIBUTION)} in {Path(__file__).parents[1]}"
        yield ok("packages", f"{own} and its {len(required)} dependencies")


def namesake() -> Finding:
    """The PostgreSQL client and this package overwrite each other's files."""
    try:
        version = metadata.version(NAMESAKE)
    except metadata.PackageNotFoundError:
        return ok("namesake", "the PostgreSQL client pgcli is not in this environment")
    return bad(
        "namesake",
        f"the PostgreSQL client pgcli {version} is in this environment: same command, same folder",
        f"{PIP} uninstall -y {NAMESAKE} {DISTRIBUTION} && {PIP} install {DISTRIBUTION}",
    )


def shell_command() -> Finding:
    """The program that the command `pgcli` starts in a shell."""
    folder = Path(sysconfig.get_path("scripts"))
    own, first = folder / "pgcli", shutil.which("pgcli")
    if first is None:
        return warn("command", "pgcli is not on PATH", f'export PATH="{folder}:$PATH"')
    if own.exists() and Path(first).resolve() != own.resolve():
        return warn(
            "command",
            f"pgcli on PATH is {first}, not this one",
            f'export PATH="{folder}:$PATH", or run {own}',
        )
    return ok("command", first)
