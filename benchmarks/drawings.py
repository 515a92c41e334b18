"""Writes a folder of drawings for the built-in model, for benchmarks that read files.

    python benchmarks/drawings.py runs/drawings
    pgcli bench demo --images runs/drawings --batch-size 64 --natural --seconds 300

The second command measures from files to rows. Equal numbers of drawings give equal files.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from examples.demo_model.scenes import EVAL_SEEDS, Scene, render


def main() -> None:
    options = _options()
    options.folder.mkdir(parents=True, exist_ok=True)
    draw(options.folder, options.count)


def draw(folder: Path, count: int) -> list[Path]:
    """Write `count` drawings as PNG files into the folder: those of evaluation first."""
    files = [folder / f"{number:05}.png" for number in range(count)]
    for seed, file in enumerate(files, EVAL_SEEDS.start):
        render(Scene.from_seed(seed)).save(file)
    return files


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=len(EVAL_SEEDS))
    return parser.parse_args()


if __name__ == "__main__":
    main()
