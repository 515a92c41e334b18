"""Train the built-in model: `python -m pgcli.training --out runs/demo`; again, it goes on."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch

from pgcli.checkpoints.save import save
from pgcli.engine.tokens import Vocabulary
from pgcli.model.config import DecoderConfig, PaliGemmaConfig, VisionConfig
from pgcli.model.paligemma import PaliGemma
from pgcli.training.data import Drawings
from pgcli.training.lessons import corpus
from pgcli.training.loop import Run, Schedule, initialise
from pgcli.training.scenes import TOKENIZER_SEEDS, TRAINING_SEEDS
from pgcli.training.tokenizer import IMAGE, build

VISION = VisionConfig(width=256, depth=5, mlp_dim=1024, num_heads=4, patch_size=14, resolution=112)
EOS = 1
TEXT_SLOTS = 48


def main() -> None:
    options = _options()
    torch.set_float32_matmul_precision("high")
    build(
        options.out,
        corpus(TOKENIZER_SEEDS),
        resolution=VISION.resolution,
        image_tokens=VISION.num_patches,
    )
    vocabulary = Vocabulary.from_folder(options.out)
    model = PaliGemma(_config(vocabulary))
    initialise(model, seed=0)
    model.to(options.device)
    drawings = Drawings(
        vocabulary=vocabulary,
        eos=EOS,
        seeds=TRAINING_SEEDS,
        resolution=VISION.resolution,
        pictures=options.pictures,
        lessons_each=options.lessons,
        text_slots=TEXT_SLOTS,
    )
    schedule = Schedule(options.steps, options.warmup, options.decay, options.rate)
    run = Run(model, drawings, schedule, options.out)
    complete = run.train(
        workers=options.workers, minutes=options.minutes, save_every=1000, log_every=50
    )
    save(model, options.out, dtype=torch.bfloat16)
    told = "complete" if complete else f"at step {run.step}; the same command goes on"
    raise SystemExit(None if complete else f"{options.out}: {told}")


def _config(vocabulary: Vocabulary) -> PaliGemmaConfig:
    decoder = DecoderConfig(
        width=256,
        depth=4,
        mlp_dim=768,
        num_heads=4,
        num_kv_heads=1,
        head_dim=64,
        vocab_size=vocabulary.size,
        max_positions=1024,
    )
    image_token = vocabulary.id(IMAGE)
    return PaliGemmaConfig(VISION, decoder, image_token=image_token, stop_tokens=(EOS,))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="the run's folder")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--warmup", type=int, default=1000)
    parser.add_argument(
        "--decay", type=int, default=5000, help="last steps, over which the rate falls"
    )
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--pictures", type=int, default=256, help="drawings in a step")
    parser.add_argument("--lessons", type=int, default=8, help="lessons of each drawing")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


if __name__ == "__main__":
    main()
