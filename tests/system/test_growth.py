"""No command that reads rows costs more per row when there are more rows."""

import pytest

from benchmarks.growth import COMMANDS, QUADRATIC, costs

FEW, SOME, MANY = 10, 2_000, 10_000
ATTEMPTS = 3  # on a busy machine, one may be slow by chance


@pytest.mark.nightly
@pytest.mark.parametrize("name", [name for name in COMMANDS if name != QUADRATIC])
def test_cost_per_row_does_not_double(name):
    assert any(is_cost_linear(name) for _ in range(ATTEMPTS))


def is_cost_linear(name: str) -> bool:
    """The start of a command is subtracted; noise of a tenth of a second is allowed."""
    start, some, many = (cost.seconds for _, _, cost in costs([name], (FEW, SOME, MANY)))
    return (many - start) / MANY < 2 * (some - start + 0.1) / SOME
