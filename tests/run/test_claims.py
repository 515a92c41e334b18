"""Chunks of an output are computed by one process each."""

from __future__ import annotations

from pathlib import Path

from pgcli.run.state.claims import CLAIMS, Claims
from pgcli.run.state.processes import Process
from pgcli.stores import LocalStore


def test_a_chunk_that_another_completes_meanwhile_is_not_claimed(tmp_path: Path) -> None:
    """It was not complete at a look, and its claim was removed before the next one."""
    store = LocalStore(tmp_path)
    looks: list[int] = []

    def is_complete(number: int) -> bool:
        looks.append(number)
        return looks.count(number) > 1 and number == 0

    claims = Claims(store, Process(store, "run"), [0, 1], is_complete)
    claim = claims.next(lambda: False)
    assert claim is not None
    assert claim.number == 1
    assert [entry.name for entry in store.list(CLAIMS)] == [f"{CLAIMS}1"]
