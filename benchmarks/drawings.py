"""Writes a folder of drawings for the built-in model, for benchmarks that read files.

    python benchmarks/drawings.py                    # into runs/drawings
    pgcli bench demo --source runs/drawings --batch-size 64

The second command measures from files to rows. The files depend only on the number of drawings.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.measure import options
from examples.demo_model.scenes import EVAL_SEEDS, Scene, render


def main() -> None:
    args = options(__doc__, folder=Path("runs/drawings"), count=len(EVAL_SEEDS))
    args.folder.mkdir(parents=True, exist_ok=True)
    draw(args.folder, args.count)


def draw(folder: Path, count: int) -> list[Path]:
    """Write `count` drawings as PNG files into the folder, the evaluation drawings first."""
    files = [folder / f"{number:05}.png" for number in range(count)]
    for seed, file in enumerate(files, EVAL_SEEDS.start):
        render(Scene.from_seed(seed)).save(file)
    return files


if __name__ == "__main__":
    main()
