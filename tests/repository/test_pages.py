"""The pages name tests that exist, and each promise has one."""

import re
from pathlib import Path

import pytest

from tests.support.repository import known_in

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
    text = (Path(__file__).parent / "promises.md").read_text()
    rows = re.findall(r"^\| ([CIDSHF]\w+) \| (.+) \| (.+) \|$", text, re.M)
    assert 80 < len(rows) <= 130, "a new promise needs a sentence of the contract"
    assert len({key for key, *_ in rows}) == len(rows)
    for key, _, tests in rows:
        assert all(re.match(r"`(?:\w+/)?test_", test) for test in tests.split(", ")), key
