"""The table of faults is true of the program and of its tests, and each fault is noticed."""

import pytest

from tests.faults.planting import ROOT, Copy, Fault, read_faults
from tests.support.repository import known_in

FAULTS = read_faults()
ROOMS = sorted({fault.room for fault in FAULTS})
MIN_FAULTS = 60


@pytest.mark.parametrize("room", ROOMS)
def test_each_fault_is_of_the_program_and_names_its_tests(room):
    for fault in of_room(room):
        source = (ROOT / "pgcli" / fault.file).read_text()
        assert source.count(fault.old) == 1, fault.name
        compile(source.replace(fault.old, fault.new), fault.name, "exec")
        assert fault.tests, fault.name
        for test in fault.tests:
            file, *names = test.partition("[")[0].split("::")
            assert tuple(names) in known_in(file), test


def test_every_room_of_the_map_has_faults():
    """Those that answer, save, read and learn; each fault is there once."""
    folders = {fault.file.partition("/")[0] for fault in FAULTS}
    assert folders > {
        *("api", "checkpoints", "cli", "towers", "engine", "evaluation", "images", "inputs"),
        *("model", "output", "run", "results", "search", "stores", "training"),
    }
    assert len(FAULTS) == len({fault.name for fault in FAULTS}) >= MIN_FAULTS
    assert len({(fault.file, fault.old, fault.new) for fault in FAULTS}) == len(FAULTS)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("room", ROOMS)
def test_every_fault_is_noticed(room, tmp_path):
    """The tests pass without a fault, and fall with theirs."""
    copy, faults = Copy(tmp_path), of_room(room)
    assert copy.fallen(test for fault in faults for test in fault.tests) == set()
    assert {fault.name: missed for fault in faults if (missed := copy.missed(fault))} == {}


def of_room(room: str) -> list[Fault]:
    return [fault for fault in FAULTS if fault.room == room]
