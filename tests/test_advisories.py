"""No release with a known flaw is asked for, tested with or installed: .ci/advisories.toml."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parent.parent
RECORD = tomllib.loads((ROOT / ".ci" / "advisories.toml").read_text())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def is_flawed(version, advisory):
    if "fixed" in advisory:
        return Version(version) < Version(advisory["fixed"])
    return Version(version) <= Version(advisory["last_affected"])


def told(versions, advisories=RECORD["advisory"]):
    """What is known against these releases, a line each."""
    return [
        f"{one['id']}: {one['package']} {versions[one['package']]}: {one['what']}"
        for one in advisories
        if one["package"] in versions and is_flawed(versions[one["package"]], one)
    ]


def required():
    """What pyproject.toml asks for, for users and for developers."""
    extras = PROJECT["optional-dependencies"].values()
    return [Requirement(line) for line in sum(extras, PROJECT["dependencies"])]


def floors():
    """The oldest release of each that pyproject.toml allows."""
    return {
        canonicalize_name(one.name): specifier.version
        for one in required()
        for specifier in one.specifier
        if specifier.operator == ">="
    }


def constraints():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if "==" in line)
    return {canonicalize_name(name): version for name, version in pairs}


def installed(name, seen):
    """What is installed of a package and of all it requires, added to `seen`."""
    if name in seen:
        return
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:  # of another platform, or an extra
        return
    seen[name] = found.version
    for line in found.requires or ():
        one = Requirement(line)
        if one.marker is None or one.marker.evaluate({"extra": ""}):
            installed(canonicalize_name(one.name), seen)


@pytest.fixture(scope="module")
def here():
    seen = {}
    for one in required():
        installed(canonicalize_name(one.name), seen)
    return seen


def test_the_releases_that_ci_installs_have_no_known_flaw():
    assert told(constraints()) == []


def test_the_releases_that_are_installed_have_no_known_flaw(here):
    assert {"torch", "pillow", "httpx2"} <= set(here)
    assert told(here) == []


def test_no_release_is_allowed_whose_flaw_reaches_this_program():
    assert told(floors(), [one for one in RECORD["advisory"] if "reaches" in one]) == []


def test_whatever_is_depended_on_was_looked_up(here):
    known = {*RECORD["nothing_found"], *(one["package"] for one in RECORD["advisory"])}
    assert {*floors(), *constraints()} - known == set()
    users = {}
    for line in PROJECT["dependencies"]:
        installed(canonicalize_name(Requirement(line).name), users)
    assert {name for name in users if not name.startswith(("nvidia-", "cuda-"))} - known == set()


def test_the_record_is_whole():
    for one in RECORD["advisory"]:
        assert re.fullmatch(r"(CVE|AIKIDO)-20\d\d-\d{4,}|GHSA(-\w{4}){3}", one["id"])
        assert ("fixed" in one) != ("last_affected" in one)
        assert one["what"]
        assert one["found"]
        assert set(one) <= {"package", "id", "fixed", "last_affected", "what", "reaches", "found"}
    names = [(one["package"], one["id"]) for one in RECORD["advisory"]]
    assert len(names) == len(set(names))


def test_a_flawed_release_is_named_with_its_advisory():
    assert any("CVE-2026-59199: pillow 12.2.0" in line for line in told({"pillow": "12.2.0"}))
    assert any("CVE-2026-4538" in line for line in told({"torch": "2.10.0"}))
    assert not told({"torch": "2.13.0+cpu", "pillow": "12.3.0"})
