"""The pages name tests that exist, and each promise has one."""

import re
from pathlib import Path

import pytest

from tests.support.named_tests import known_in

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *Path(__file__).parent.glob("*.md"),
]
NAMED = re.compile(r"(?:tests/)?((?:\w+/)*test_\w+\.py)((?:::\w+)*)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tests_named_by_a_page_exist(page):
    for name, within in NAMED.findall(page.read_text()):
        assert known_in(name), name
        if within:
            assert tuple(within.removeprefix("::").split("::")) in known_in(name), within


def test_every_promise_has_a_test():
    promises, index = (Path(__file__).parent / "promises.md").read_text().split("\n## Tests\n")
    keys = re.findall(r"^(?:\| |- \*\*)([CIDSHF]\d+)\b", promises, re.M)
    tested = set(re.findall(r"^\| ([CIDSHF]\d+) \| `(?:\w+/)?test_", index, re.M))
    assert len(keys) > 90
    assert set(keys) - tested == set()
