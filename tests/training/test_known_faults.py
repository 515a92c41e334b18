"""What other trainers get wrong: the checks pass here, and fail where the fault is planted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import training_checks
from tests.support.training_checks import Patch, write_inputs
from tests.support.training_faults import FAULTS

Check = Callable[[Patch], None]
PLANTED = {plant: check for faults in FAULTS.values() for plant, check in faults.items()}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: Patch) -> Path:
    """The current folder, with a random model `tiny` and a manifest `rows.jsonl`."""
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path)
    return tmp_path


def test_loss_is_that_of_the_answers_as_the_engine_scores_them(
    folder: Path, monkeypatch: Patch
) -> None:
    training_checks.check_loss(monkeypatch)


def test_accumulated_updates_are_those_of_the_batch(folder: Path, monkeypatch: Patch) -> None:
    training_checks.check_accumulation(monkeypatch)


def test_resumed_run_neither_repeats_nor_skips_rows(folder: Path, monkeypatch: Patch) -> None:
    training_checks.check_resume(monkeypatch)


def test_adapter_with_renamed_keys_is_refused(folder: Path, monkeypatch: Patch) -> None:
    training_checks.check_keys(monkeypatch)


def test_merged_weights_are_those_of_the_adapter(folder: Path, monkeypatch: Patch) -> None:
    training_checks.check_merged(monkeypatch)


def test_small_updates_of_bfloat16_weights_are_kept(folder: Path, monkeypatch: Patch) -> None:
    training_checks.check_small_updates(monkeypatch)


def test_small_updates_of_adapters_are_kept(folder: Path, monkeypatch: Patch) -> None:
    training_checks.check_small_updates_of_adapters(monkeypatch)


def test_saved_weights_are_those_of_the_best_evaluation(folder: Path, monkeypatch: Patch) -> None:
    training_checks.check_best(monkeypatch)


def test_rows_that_do_not_fit_are_left_out(folder: Path, monkeypatch: Patch) -> None:
    training_checks.check_long_rows(monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_planted_fault_is_noticed(folder: Path, monkeypatch: Patch, plant: Check) -> None:
    """By the check's own assertion: a run that ends otherwise raises RunFailed."""
    plant(monkeypatch)
    with pytest.raises(AssertionError) as noticed:
        PLANTED[plant](monkeypatch)
    assert Path(noticed.traceback[-1].path).samefile(training_checks.__file__)
