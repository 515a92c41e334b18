"""Compares the two contrastive losses at equal budget, and draws what `docs/training.md` shows.

Trains the towers with each loss for 100 steps, or reads the runs that are in `--out` already, and
writes `losses.png` and `similarity.png`: `python benchmarks/towers_losses.py --out runs/losses`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from benchmarks.towers_quality import distinct_groups, encode
from examples.demo_model.examples import caption
from examples.demo_model.render import render
from examples.demo_model.scenes import EVAL_SEEDS, Scene
from pgcli.checkpoints.find import Checkpoint
from pgcli.embedding.loader import load
from pgcli.training.curves import CurvesPanel, draw_panels
from pgcli.training.metrics_file import read_metrics

LOSSES = ("sigmoid", "softmax")
BUDGET = "--steps 100 --batch-size 32 --copies 0 --warmup 10 --eval-every 10".split()
START = "start"
ROWS = 24  # drawings of a matrix
CELL, MARGIN, TITLE = 11, 14, 26  # pixels


def main() -> None:
    options = _options()
    for loss in (*LOSSES, START):
        if not (options.out / loss / "metrics.jsonl").exists():
            train(options.out / loss, loss)
    options.pictures.mkdir(parents=True, exist_ok=True)
    panels = [panel for loss in LOSSES for panel in loss_panels(options.out / loss, loss)]
    draw_panels(panels, steps=(1, 100)).save(options.pictures / "losses.png", optimize=True)
    matrices = [similarity(options.out / name) for name in (START, *LOSSES)]
    titles = ("before training", *(f"after 100 steps, {loss}" for loss in LOSSES))
    draw_matrices(matrices, titles).save(options.pictures / "similarity.png", optimize=True)


def train(folder: Path, loss: str) -> None:
    """Train towers with the loss; START is one step with a learning rate of almost nothing."""
    command = [sys.executable, "-m", "examples.demo_towers", "--out", str(folder)]
    if loss == START:
        command += "--steps 1 --batch-size 2 --copies 0 --rate 1e-12 --eval-every 1".split()
    else:
        command += ["--loss", loss, *BUDGET]
    subprocess.run(command, check=True)


def loss_panels(folder: Path, loss: str) -> Iterator[CurvesPanel]:
    """The loss over the steps, and the recall of the evaluations."""
    lines = read_metrics(folder / "metrics.jsonl")
    losses = [(line["step"], line["loss"]) for line in lines]
    evaluated = [(one["step"], one["eval_loss"]) for one in lines if "eval_loss" in one]
    yield CurvesPanel(f"{loss}: loss, and evaluation (dots)", (), losses, evaluated)
    recall = [
        (one["step"], (one["eval_image_to_text"] + one["eval_text_to_image"]) / 2)
        for one in lines
        if "eval_loss" in one
    ]
    yield CurvesPanel(f"{loss}: first hit is right, of 32", (), [(0, 0.0), *recall], recall)


def similarity(folder: Path) -> np.ndarray:
    """The cosines of drawings of unseen seeds and their captions."""
    engine = load(Checkpoint(folder.name, folder), dtype="float32", device="cpu")
    scenes = [Scene.from_seed(seed) for seed in EVAL_SEEDS[:200]]
    chosen = [scenes[index] for index in next(iter(distinct_groups(scenes)))[:ROWS]]
    return encode(engine, map(render, chosen)) @ engine.encode_texts([*map(caption, chosen)]).T


def draw_matrices(matrices: Sequence[np.ndarray], titles: Sequence[str]) -> Image.Image:
    """The matrices side by side: blue below zero, red above."""
    side = ROWS * CELL
    size = (len(matrices) * (side + MARGIN) + MARGIN, side + TITLE + MARGIN)
    canvas = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(canvas)
    for number, (cosine, title) in enumerate(zip(matrices, titles, strict=True)):
        left = MARGIN + number * (side + MARGIN)
        draw.text((left, 6), title, fill="black", font=ImageFont.load_default(13))
        picture = Image.fromarray(colours(cosine)).resize((side, side), Image.Resampling.NEAREST)
        canvas.paste(picture, (left, TITLE))
    return canvas


def colours(cosine: np.ndarray) -> np.ndarray:
    """Red for 1, white for 0, blue for -1."""
    strength = np.clip(np.abs(cosine), 0, 1)[..., None]
    full = np.where(cosine[..., None] > 0, [178, 24, 43], [33, 102, 172])
    return (255 + strength * (full - 255.0)).astype(np.uint8)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/losses"))
    parser.add_argument("--pictures", type=Path, default=Path("docs"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
