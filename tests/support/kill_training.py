"""A training run killed at random moments: `-m tests.support.kill_training KILLS WORKERS`.

A run is a fork of this process, which has imported everything. It trains an adapter with dropout,
and evaluates and saves its state after each update. Every third run is ended by SIGTERM. The
report is printed as JSON.
"""

import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import torch

import pgcli.training.run  # noqa: F401 - imported once, before the forks
from pgcli.cli.main import main
from pgcli.training.trainer import Trainer
from tests.support.training import write_checkpoint, write_questions

COMMAND = (
    "train questions.jsonl --eval eval/questions.jsonl --model base --device cpu --dtype float32 "
    "--batch-size 5 --dropout 0.2 --learning-rate 1e-2 --eval-every 4 --quiet"
)
STEPS_PER_KILL = 5  # a run makes up to three of them before it is killed
LONGEST_DELAY = 0.03  # seconds after the update; an update takes about as long


def start(words: str) -> int:
    """The process that runs a command line, and saves its state after each update."""
    if child := os.fork():
        return child
    Trainer._is_saved = lambda self, seconds: True  # type: ignore[method-assign]
    os._exit(main(words.split()))


def updates(folder: Path) -> int:
    """The updates of a run so far."""
    file = folder / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def kill(child: int, folder: Path, signum: int, moments: random.Random) -> bool:
    """Kill the run after one to three more updates; return whether it was still running."""
    last = updates(folder) + moments.randint(1, 3)
    while updates(folder) < last:
        if os.waitpid(child, os.WNOHANG)[0]:
            return False
        time.sleep(0.002)
    time.sleep(moments.uniform(0, LONGEST_DELAY))
    os.kill(child, signum)
    os.waitpid(child, 0)
    return True


def losses(folder: Path) -> list[tuple[int, float]]:
    """The step and the loss of each line of the metrics."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [(line["step"], line["loss"]) for line in map(json.loads, lines)]


def run(kills: int, workers: int) -> dict[str, object]:
    """The results that must be the same with and without kills."""
    moments = random.Random(0)
    command = f"{COMMAND} --workers {workers} --steps {STEPS_PER_KILL * (kills + 1)}"
    assert os.waitpid(start(f"{command} -o whole"), 0)[1] == 0
    done = 0
    for number in range(kills):
        signum = signal.SIGTERM if number % 3 == 2 else signal.SIGKILL
        done += kill(start(f"{command} -o killed"), Path("killed"), signum, moments)
    status = os.waitpid(start(f"{command} -o killed"), 0)[1]
    names = ("adapter_model.safetensors", "last/adapter_model.safetensors")
    return {
        "kills": done,
        "exit_code": os.waitstatus_to_exitcode(status),
        "same_weights": all(
            Path("whole", name).read_bytes() == Path("killed", name).read_bytes() for name in names
        ),
        "same_losses": losses(Path("whole")) == losses(Path("killed")),
        "left_behind": sorted(one.name for one in Path().rglob(".*")),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write_questions(Path(), count=13)
        write_questions(Path("eval"), count=4, first=30)
        write_checkpoint(Path("base"))
        report = run(kills=int(sys.argv[1]), workers=int(sys.argv[2]))
        os.chdir("/")
    sys.stdout.write(json.dumps(report) + "\n")
