"""Chunks are given to engines that may end at any time: each is stored once, none is lost."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from pgcli.cluster import chunk_driver
from pgcli.cluster.chunk_driver import MAX_DEATHS_IN_A_ROW, ChunkDriver, Ended
from pgcli.errors import NoUsableDevice, OutputFailed
from tests.support.fleet import Accident, LightFleet

ROWS = 4


class OwnClaims:
    """All chunks, of which no other driver has any."""

    def __init__(self, count: int):
        self._free, self._left = list(range(count)), count

    @property
    def left(self) -> int:
        return self._left

    def claim(self, count: int = 1, *, spare: int = 0) -> list[int]:
        count = 0 if len(self._free) <= spare else count
        found, self._free = self._free[:count], self._free[count:]
        return found

    def done(self) -> None:
        self._left -= 1


def drive(fleet: LightFleet, chunks: int, **options: Any) -> ChunkDriver:
    """Compute the chunks, each of four images with a row."""
    claims = OwnClaims(chunks)
    driver = ChunkDriver(fleet, claims, images, lambda info: f"begun {info}", **options)
    for _ in driver.reports():
        claims.done()
    return driver


def images(number: int) -> list[range]:
    return [range(row, row + 1) for row in range(number * ROWS, (number + 1) * ROWS)]


def all_rows(fleet: LightFleet) -> list[str]:
    return [row for _, rows in sorted(fleet.stored.items()) for row in rows]


def ends_at(row: int, *, times: int) -> Accident:
    """Engines end whenever they answer the row, for so many times."""
    left = [times]

    def accident(engine: int, method: str, args: tuple[Any, ...]) -> str | None:
        is_met = method == "run" and args[0] == row // ROWS
        is_met |= method == "answer" and row in args[0]
        if not is_met or not left[0]:
            return None
        left[0] -= 1
        return "killed"

    return accident


def test_every_chunk_is_computed_once_by_the_engines_there_are() -> None:
    fleet = LightFleet(3)
    driver = drive(fleet, 20)
    assert all_rows(fleet) == [f"row {row}" for row in range(80)]
    assert driver.most_at_once == 3
    engines = Counter(engine for engine, method, _ in fleet.calls if method == "run")
    assert sorted(engines) == [0, 1, 2]
    assert min(engines.values()) >= 5
    assert not fleet.alive


def test_a_run_has_no_more_engines_than_asked_for_or_chunks() -> None:
    fleet = LightFleet(10)
    drive(fleet, 20, most=2)
    assert fleet.started == 2
    fleet = LightFleet(10)
    drive(fleet, 3)
    assert fleet.started == 3


def test_chunk_whose_engine_ends_once_is_computed_again() -> None:
    fleet = LightFleet(2, ends_at(9, times=1))
    drive(fleet, 10)
    assert all_rows(fleet) == [f"row {row}" for row in range(40)]
    assert fleet.started == 3
    assert not [call for call in fleet.calls if call[1] == "answer"]


def test_only_the_image_that_ends_engines_has_an_error() -> None:
    fleet = LightFleet(2, ends_at(9, times=99))
    drive(fleet, 10)
    expected = [f"row {row}" for row in range(40)]
    expected[9] = "refused 9"
    assert all_rows(fleet) == expected
    assert fleet.started == 2 + 2 + 2


def test_an_image_at_which_a_third_engine_ended_by_chance_is_answered() -> None:
    fleet = LightFleet(2, ends_at(9, times=3))
    drive(fleet, 10)
    assert all_rows(fleet) == [f"row {row}" for row in range(40)]


@pytest.mark.parametrize("seed", range(5))
def test_engines_that_end_by_chance_lose_and_repeat_nothing(seed: int) -> None:
    chance = random.Random(seed)
    fleet = LightFleet(5, lambda *_: "preempted" if chance.random() < 0.1 else None)
    drive(fleet, 100)
    assert sorted(fleet.stored) == list(range(100))
    assert [row.split()[1] for row in all_rows(fleet)] == [str(row) for row in range(400)]


def test_an_engine_that_ends_without_work_is_given_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_driver, "CLAIM_SECONDS", 0.0)
    claims, fleet = OwnClaims(2), LightFleet(1)
    others = claims.claim()

    def claim(count: int = 1, *, spare: int = 0) -> list[int]:
        if fleet.started == 2:  # the other driver was killed, too
            claims._free.extend(others)
            others.clear()
        return OwnClaims.claim(claims, count, spare=spare)

    monkeypatch.setattr(claims, "claim", claim)
    driver = ChunkDriver(fleet, claims, images, lambda info: f"begun {info}")
    for _ in driver.reports():
        claims.done()
        fleet._events.append(Ended(0, "preempted"))
    assert [(engine, args[0]) for engine, method, args in fleet.calls if method == "run"] == [
        (0, 1),
        (1, 0),
    ]
    assert driver._deaths_in_a_row == 0


def test_a_run_whose_engines_only_end_stops() -> None:
    fleet = LightFleet(2, lambda engine, method, args: "no memory" if method == "load" else None)
    with pytest.raises(NoUsableDevice, match="ended in a row, the last one: no memory"):
        drive(fleet, 10)
    assert fleet.started <= MAX_DEATHS_IN_A_ROW + 2


def test_an_error_that_other_engines_would_raise_too_ends_the_run() -> None:
    full = OutputFailed("the disk is full")
    fleet = LightFleet(2, lambda engine, method, args: full if args[:1] == (3,) else None)
    with pytest.raises(OutputFailed, match="disk is full"):
        drive(fleet, 10)
    assert not fleet.alive


def test_an_engine_without_a_device_is_replaced_if_others_have_one() -> None:
    lost = NoUsableDevice("the GPU is lost")
    accident = ends_at(9, times=1)
    fleet = LightFleet(2, lambda engine, *call: lost if engine == 2 else accident(engine, *call))
    drive(fleet, 10)
    assert all_rows(fleet) == [f"row {row}" for row in range(40)]


def test_chunks_of_other_drivers_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_driver, "CLAIM_SECONDS", 0.0)
    claims, waits = OwnClaims(4), []
    others = claims.claim(2)

    def claim(count: int = 1, *, spare: int = 0) -> list[int]:
        found = OwnClaims.claim(claims, count, spare=spare)
        if not found and not spare:
            waits.append(claims.left)
            if len(waits) == 3:  # the other driver was killed
                claims._free.extend(others)
        return found

    monkeypatch.setattr(claims, "claim", claim)
    fleet = LightFleet(1)
    for _ in ChunkDriver(fleet, claims, images, lambda info: f"begun {info}").reports():
        claims.done()
    assert sorted(fleet.stored) == [0, 1, 2, 3]
    assert waits[:3] == [2, 2, 2]
