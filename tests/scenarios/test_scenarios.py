"""Whole commands do what their scenarios recorded; harness.py describes the files."""

import pytest

from tests.scenarios.harness import alike, differences, parse, played, scenario_files

PARAMETERS = [
    pytest.param(
        file,
        id=f"{file.parent.name}/{file.stem}",
        marks=[pytest.mark.slow] if parse(file.read_text()).slow else [],
    )
    for file in scenario_files()
]


@pytest.mark.parametrize("file", PARAMETERS)
def test_scenario(file, tmp_path):
    recorded = file.read_text()
    scenario = parse(recorded)
    if reason := scenario.skip():
        pytest.skip(reason)
    found = differences(recorded, played(scenario, tmp_path).text())
    if found:
        pytest.fail("\n".join([f"{file.name} is not as recorded:", *found]), pytrace=False)


def test_numbers_are_alike_within_the_tolerance_only():
    assert alike('{"score": 0.000474, "n": 3}', '{"score": 0.000475, "n": 3}')
    assert not alike('{"score": 0.000474}', '{"score": 0.000574}')
    assert not alike('{"xmin": 119.82}', '{"xmin": 120.26}')
    assert not alike('{"n": 3}', '{"n": 4}')


def test_every_scenario_says_what_it_shows():
    for file in scenario_files():
        scenario = parse(file.read_text())
        assert scenario.head[0].startswith("# "), file.name
        assert any("pgcli" in step.command for step in scenario.steps), file.name
