"""CI allows the skips of tests/support/repository.py and no others."""

from collections import Counter

import pytest

from tests.support.repository import unexpected

CONFTEST = "from tests.conftest import *  # noqa: F403\n"
SKIPPING = "import pytest\n\ndef test_one():\n    pytest.skip({!r})\n"


def test_allowed_and_unexpected_reasons_differ():
    reasons = Counter({"this machine has no CUDA device": 3, "jq is not installed": 2})
    assert unexpected(reasons) == ["jq is not installed (2 x)"]


@pytest.mark.parametrize(
    ("reason", "ci", "code", "workers"),
    [
        ("jq is not installed", "true", 1, "1"),
        ("jq is not installed", "", 0, "0"),
        ("this machine has no CUDA device", "true", 0, "0"),
    ],
)
def test_unexpected_skip_fails_ci(pytester, monkeypatch, reason, ci, code, workers):
    monkeypatch.setenv("CI", ci)
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(SKIPPING.format(reason))
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-n", workers)
    assert result.ret == code
    assert ("unexpected skip: jq" in result.stdout.str()) == bool(code)
