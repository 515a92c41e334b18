"""Checks the versions of Python and packages, and conflicts with PostgreSQL's pgcli."""

from __future__ import annotations

import re
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from pgcli.doctor.finding import Finding, bad, ok, warn

DISTRIBUTION = "paligemma-cli"
NAMESAKE = "pgcli"  # the PostgreSQL client's distribution, package and command
MIN_PYTHON = (3, 11)
REQUIREMENT = re.compile(r"([\w.-]+)\s*(?:\(?>=\s*([\d.]+)\)?)?")


def python() -> Finding:
    found = f"{sys.version.split()[0]} in {sys.prefix}"
    if sys.version_info < MIN_PYTHON:
        required = ".".join(map(str, MIN_PYTHON))
        return bad("python", found, f"uv venv --python {required}, and install pgcli in it")
    return ok("python", found)


def this() -> Finding:
    try:
        return ok("pgcli", f"{metadata.version(DISTRIBUTION)} in {Path(__file__).parents[1]}")
    except metadata.PackageNotFoundError:
        return warn(
            "pgcli",
            f"running from {Path(__file__).parents[1]}, not installed",
            f"{sys.executable} -m pip install -e . in the repository's folder",
        )


def others() -> Iterator[Finding]:
    """Each required package with its version, and whether that is recent enough."""
    for name, least in sorted(_required().items()):
        requirement = f"{name}>={least}" if least else name
        command = f"{sys.executable} -m pip install '{requirement}'"
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield bad(name, "not installed", command)
            continue
        if least and _numbers(version) < _numbers(least):
            yield bad(name, f"{version}, and {least} or later is required", command)
        else:
            yield ok(name, version)


def _required() -> dict[str, str]:
    """Name -> minimum version, from this package's metadata, without extras."""
    try:
        lines = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return {"torch": "", "tokenizers": "", "safetensors": "", "pillow": "", "pyarrow": ""}
    found = (REQUIREMENT.match(line) for line in lines if "extra ==" not in line)
    return {match[1]: match[2] or "" for match in found if match}


def _numbers(version: str) -> tuple[int, ...]:
    """`2.13.0+cpu` as (2, 13), without trailing zeros."""
    numbers = [int(part) for part in re.findall(r"\d+", re.split(r"[+a-z]", version)[0])]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def namesake() -> Finding:
    """The PostgreSQL client and this package overwrite each other's files."""
    try:
        version = metadata.version(NAMESAKE)
    except metadata.PackageNotFoundError:
        return ok("namesake", "the PostgreSQL client pgcli is not in this environment")
    pip = f"{sys.executable} -m pip"
    return bad(
        "namesake",
        f"the PostgreSQL client pgcli {version} is in this environment: same command, same folder",
        f"{pip} uninstall -y {NAMESAKE} {DISTRIBUTION} && {pip} install {DISTRIBUTION}",
    )


def command() -> Finding:
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
