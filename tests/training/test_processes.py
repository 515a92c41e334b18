"""Several processes make the updates of one, in the same files, and end together."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pgcli.cli.main import main
from pgcli.training.processes import ALONE, Processes
from tests.support.training import (
    Command,
    metrics,
    run_in_processes,
    stop_after_an_update,
    write_checkpoint,
    write_folders,
    write_pairs,
    write_questions,
)

TRAIN = "train --workers 0 --device cpu --dtype float32 --warmup 0 --batch-size 5"
ANSWER = f"{TRAIN} questions.jsonl --model base --eval questions-to-measure.jsonl --eval-every 2"
FULL = f"{ANSWER} --method full --micro-batch 1 --steps 3 --learning-rate 1e-3"
FROZEN = f"{ANSWER} --method full --freeze vision --steps 5 --learning-rate 1e-3"
COMMANDS = {
    "classify": f"{TRAIN} walls --task classify --init tiny --steps 3 --eval-fraction 0.25",
    "contrastive": f"{TRAIN} pairs.jsonl --task contrastive --init tiny --steps 2 --micro-batch 2",
    "softmax": f"{TRAIN} pairs.jsonl --task contrastive --init tiny --steps 2 --loss softmax",
    "lora": f"{ANSWER} --steps 5 --learning-rate 1e-2",
    "full": FULL,
    "frozen": FROZEN,
}
SAME = {"step", "loss", "rows", "lost", "tokens", "gradient_norm", "learning_rate", "eval_loss"}


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_each_row_of_an_update_is_in_one_process(count):
    shares = [Processes(rank, count).share(range(11)) for rank in range(count)]
    assert sorted(row for share in shares for row in share) == [*range(11)]
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_each_process_has_its_own_random_numbers():
    seeds = {Processes(rank, 3).seed(7, 1) for rank in range(3)}
    assert len(seeds) == 3
    assert ALONE.seed(7, 1) in seeds


def assert_same_run(one: Path, other: Path) -> None:
    """Whether the lines of the metrics are the same, but for rounding, times and memory."""
    for line, expected in zip(metrics(one), metrics(other), strict=True):
        assert line.keys() == expected.keys()
        for name in SAME & expected.keys():
            if expected[name] is None:  # the loss before the first update
                assert line[name] is None
                continue
            assert line[name] == pytest.approx(expected[name], rel=1e-5, abs=1e-5), name


@pytest.mark.slow
def test_two_processes_train_as_one(tmp_path, monkeypatch):
    """One image cannot be read, and the shares have three rows and two."""
    monkeypatch.chdir(tmp_path)
    write_pairs(tmp_path)
    write_folders(tmp_path / "walls")
    write_questions(tmp_path)
    lines = Path("questions.jsonl").read_text().splitlines(keepends=True)
    Path("questions.jsonl").write_text("".join(lines[:11]))
    Path("questions-to-measure.jsonl").write_text("".join(lines[11:14]))
    write_checkpoint(tmp_path / "base")
    for broken in ("images/03.png", "walls/red/00.png"):
        Path(broken).write_bytes(Path(broken).read_bytes()[:40])
    for name, words in COMMANDS.items():
        assert main(f"{words} -o alone-{name}".split()) == 3
    with stop_after_an_update():
        main(f"{FULL} -o continued".split())
    *same, continued, stopped, small, no_data, no_memory = run_in_processes(
        [
            *(Command(f"{words} -o both-{name}") for name, words in COMMANDS.items()),
            Command(f"{FULL} -o continued"),
            Command(f"{FULL} -o stopped", event="stop"),
            Command(f"{COMMANDS['classify']} --batch-size 1 -o small"),
            Command(f"{COMMANDS['classify']} -o no-data", event="no data"),
            Command(f"{COMMANDS['classify']} -o no-memory", event="no memory"),
        ],
        tmp_path,
    )
    for outcome, name in zip(same, COMMANDS, strict=True):
        assert outcome.codes == [3, 3], outcome
        assert "skipped 1 unusable row" in outcome.messages[0]
        assert_same_run(Path(f"both-{name}"), Path(f"alone-{name}"))
    assert continued.codes == [3, 3], continued
    assert [line["step"] for line in metrics(Path("stopped"))] == [0, 1], stopped
    assert main(f"{FULL} -o stopped".split()) == 3
    expected = load_file("alone-full/last/model.safetensors")
    for folder in ("both-full", "continued", "stopped"):
        assert_same_run(Path(folder), Path("alone-full"))
        found = load_file(f"{folder}/last/model.safetensors")
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)
    for outcome, rank, code, message in (
        (small, 0, 2, "updates of 1 row cannot be divided over 2 processes"),
        (no_data, 1, 15, "the images are gone"),
        (no_memory, 1, 17, "no memory is left"),
    ):
        assert outcome.codes[rank] == code, outcome
        assert outcome.codes[1 - rank] != 0, outcome  # it may only see that the other has ended
        assert "".join(outcome.messages).count("hint: ") == 1, outcome
        assert message in "".join(outcome.messages)


@pytest.mark.slow
def test_process_that_runs_out_of_memory_takes_smaller_micro_batches(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_questions(tmp_path, count=11)
    write_checkpoint(tmp_path / "base")
    full = f"{TRAIN} questions.jsonl --model base --method full --steps 3 --learning-rate 1e-3"
    assert main(f"{full} -o alone".split()) == 0
    (outcome,) = run_in_processes([Command(f"{full} -o both", "out of memory")], tmp_path)
    assert outcome.codes == [0, 0], outcome
    assert_same_run(Path("both"), Path("alone"))
