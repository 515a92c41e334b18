"""Averages the weights of runs of which one began with the weights of another.

    python -m examples.demo_model.average runs/many runs/asked --out runs/both

What a run learned last from a few rows is noise, of which the average has less, while its loss is
no higher, as long as the runs are near each other (Izmailov et al., 2018, arXiv:1803.05407).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from examples.demo_model.task import DemoLearner, copy_tokenizer


def average(folders: Sequence[Path], out: Path) -> None:
    """Write the mean of the runs' weights, rounded to bfloat16 once."""
    first, *others = (DemoLearner.load(folder) for folder in folders)
    weights = [one.state_dict() for one in others]
    with torch.no_grad():
        for name, weight in first.named_parameters():
            weight.copy_(torch.stack([weight, *(one[name] for one in weights)]).mean(0))
    first.save(out, dtype=torch.bfloat16)
    copy_tokenizer(folders[0], out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m examples.demo_model.average",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folders", nargs="+", type=Path, help="folders of runs")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    average(options.folders, options.out)
