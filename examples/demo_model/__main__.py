"""Trains the built-in model, phase by phase; the same command again resumes.

    python -m examples.demo_model runs
    torchrun --nproc-per-node 2 -m examples.demo_model runs
    python -m examples.demo_model runs --phase vision --steps 100 --batch-size 4

Each phase of phases.toml has a folder in `runs`; the model's is `runs/demo`. The last command tries
one phase, after the phases that it starts from.

Two processes made the shipped weights in these phases, with the code of commit 7d19615f. That code
also learned the tokenizer and the mask codes, which now come from the shipped model, and it summed
the rows of an update in another order.
"""

from __future__ import annotations

import argparse
import tomllib
from dataclasses import replace
from pathlib import Path

import torch

from examples.demo_model.model import DemoLearner
from examples.demo_model.muon import Muon
from examples.demo_model.task import Drawings, DrawingsTask, Phase, first_learner
from pgcli.checkpoints.find import BUILTIN
from pgcli.engine.tokenizer import Tokenizer
from pgcli.training.processes import Processes, joined_processes
from pgcli.training.trainer import Trainer, TrainerOptions

FILE = Path(__file__).with_name("phases.toml")
PHASES = {name: Phase(**values) for name, values in tomllib.loads(FILE.read_text()).items()}


def make(runs: Path, name: str, phase: Phase, processes: Processes) -> None:
    """Train a phase; its folder and the folders of earlier phases are in `runs`."""
    folder, state = runs / name, runs / name / "state"
    state.mkdir(parents=True, exist_ok=True)
    earlier = [runs / weights for weights in phase.weights]
    learner = DemoLearner.load(*earlier) if earlier else first_learner()
    drawings = Drawings(phase, Tokenizer.from_folder(BUILTIN))
    task = DrawingsTask(learner, drawings, workers=1, processes=processes)
    if not phase.steps:
        if processes.is_first:
            task.save(folder)
        processes.wait()
        return
    options = TrainerOptions(
        phase.steps,
        phase.rate,
        warmup=min(50, phase.steps // 4),
        weight_decay=0.05,
        betas=(0.9, 0.98),
        optimizer=Muon,
        eval_every=phase.eval_every,
    )
    trainer = Trainer(task, options, folder, state, processes)
    trainer.run(on_update=lambda line: print(f"{name} {line['step']}: {line['loss']:.3f}"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m examples.demo_model")
    parser.add_argument("runs", type=Path, help="folder for the phases' folders")
    parser.add_argument("--phase", choices=PHASES, help="train only this phase")
    parser.add_argument("--steps", type=int, help="overrides the steps of each phase")
    parser.add_argument("--batch-size", type=int, help="overrides the batch size of each phase")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # the other core draws
    with joined_processes("cpu") as joined:
        for name in [arguments.phase] if arguments.phase else PHASES:
            phase = PHASES[name]
            steps = phase.steps and (arguments.steps or phase.steps)
            batch_size = arguments.batch_size or phase.batch_size
            phase = replace(phase, steps=steps, batch_size=batch_size)
            make(arguments.runs, name, phase, joined)
