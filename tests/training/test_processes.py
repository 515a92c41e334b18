"""Several processes make the updates of one, in the same files, and end together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pgcli.cli.main import main
from pgcli.training.processes import ALONE, Processes, _buckets
from tests.support.train_processes import Command, run_in_processes, stop_after_an_update
from tests.support.training_data import write_folders, write_pairs

TRAIN = "train --init tiny --workers 0 --device cpu --dtype float32 --warmup 0 --batch-size 5"
CLASSIFY = f"{TRAIN} walls --task classify --steps 3 --eval-fraction 0.25 --eval-every 3"
SAME = {"step", "loss", "rows", "lost", "gradient_norm", "learning_rate", "eval_loss"}
CONTRASTIVE = f"{TRAIN} pairs.jsonl --task contrastive --steps 2 --loss"


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_each_row_of_an_update_is_in_one_process(count: int) -> None:
    shares = [Processes(rank, count).share(range(11)) for rank in range(count)]
    assert sorted(row for share in shares for row in share) == [*range(11)]
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_processes_have_random_numbers_of_their_own() -> None:
    seeds = {Processes(rank, 3).seed(7, 1) for rank in range(3)}
    assert len(seeds) == 3
    assert ALONE.seed(7, 1) in seeds


def test_gradients_are_sent_in_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgcli.training.processes.BUCKET_VALUES", 10)
    gradients = [torch.zeros(size) for size in (4, 4, 4, 30, 1)]
    assert [[len(one) for one in bucket] for bucket in _buckets(gradients)] == [
        [4, 4, 4],
        [30],
        [1],
    ]


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def assert_same_run(one: Path, other: Path) -> None:
    """Whether the lines of the metrics are the same, but for rounding, times and memory."""
    for line, expected in zip(metrics(one), metrics(other), strict=True):
        assert line.keys() == expected.keys()
        for name in SAME & expected.keys():
            assert line[name] == pytest.approx(expected[name], rel=1e-5, abs=1e-5), name


@pytest.mark.slow
def test_two_processes_train_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One image cannot be read, and the shares have three rows and two."""
    monkeypatch.chdir(tmp_path)
    write_pairs(tmp_path)
    write_folders(tmp_path / "walls")
    for broken in ("images/03.png", "walls/red/00.png"):
        Path(broken).write_bytes(Path(broken).read_bytes()[:40])
    alone = {
        "classify": f"{CLASSIFY} -o alone-classify",
        "softmax": f"{CONTRASTIVE} softmax --micro-batch 2 -o alone-softmax",
        "sigmoid": f"{CONTRASTIVE} sigmoid -o alone-sigmoid",
    }
    for words in alone.values():
        assert main(words.split()) == 3
    with stop_after_an_update():
        assert main(f"{CLASSIFY} -o continued".split()) in (0, 3)
    found = run_in_processes(
        [
            *(Command(words.replace("-o alone", "-o both")) for words in alone.values()),
            Command(f"{CLASSIFY} -o continued"),
            Command(f"{CLASSIFY} -o stopped", event="stop"),
            Command(f"{CLASSIFY.replace('--batch-size 5', '--batch-size 1')} -o small"),
            Command(f"{CLASSIFY} -o no-data", event="no data"),
            Command(f"{CLASSIFY} -o no-memory", event="no memory"),
        ],
        tmp_path,
    )
    *same, continued, stopped, small, no_data, no_memory = found
    for outcome, name in zip(same, alone, strict=True):
        assert outcome.codes == [3, 3], outcome
        assert "1 image could not be read" in outcome.messages[0]
        assert_same_run(Path(f"both-{name}"), Path(f"alone-{name}"))
    assert continued.codes == [3, 3], continued
    assert len(metrics(Path("stopped"))) == 1, stopped
    assert main(f"{CLASSIFY} -o stopped".split()) == 3
    for folder in ("continued", "stopped"):
        assert_same_run(Path(folder), Path("alone-classify"))
    for outcome, codes, message in (
        (small, [2, 2], "updates of 1 rows cannot be divided over 2 processes"),
        (no_data, [15, 15], "the images are gone"),
        (no_memory, [1, 17], "no memory is left"),
    ):
        assert outcome.codes == codes, outcome
        assert "".join(outcome.messages).count("pgcli: ") == 1, outcome
        assert message in "".join(outcome.messages)
