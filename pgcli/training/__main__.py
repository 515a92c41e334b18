"""Train the built-in model: `python -m pgcli.training --out runs/demo`; again, it goes on."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from pgcli.checkpoints.save import save
from pgcli.engine.tokens import Vocabulary
from pgcli.model.config import DecoderConfig, PaliGemmaConfig, VisionConfig
from pgcli.model.paligemma import PaliGemma
from pgcli.printable import printable
from pgcli.training.beginning import Schedule, initialise
from pgcli.training.data import Drawings
from pgcli.training.lessons import corpus
from pgcli.training.loop import Phase, Run
from pgcli.training.scenes import TOKENIZER_SEEDS, TRAINING_SEEDS
from pgcli.training.tokenizer import IMAGE, build

WIDTH = 192
VISION = VisionConfig(width=WIDTH, depth=4, mlp_dim=768, num_heads=3, patch_size=14, resolution=112)
EOS = 1
PICTURES = 64  # drawings in a step
SHARED_SLOTS = 128  # text tokens of a row of several lessons
SINGLE_SLOTS = 48  # more than any one lesson takes


def main() -> None:
    options = _options()
    torch.set_float32_matmul_precision("high")
    if not (options.out / "tokenizer.json").exists():  # a run that goes on keeps its words
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
    phases = _phases(vocabulary, options.eye, options.shared, options.single)
    steps = sum(phase.steps for phase in phases)
    schedule = Schedule(steps, options.warmup, options.decay, options.rate)
    run = Run(model, phases, schedule, options.out)
    if options.compile:
        model.vision.compile(dynamic=False)
        model.compile(dynamic=False)
    complete = run.train(
        workers=options.workers, minutes=options.minutes, save_every=500, log_every=50
    )
    save(model, options.out, dtype=torch.bfloat16)
    if not complete:
        stands = f"{options.out} stands at step {run.step}; the same command goes on"
        raise SystemExit(printable(stands))


def _phases(vocabulary: Vocabulary, eye: int, shared: int, single: int) -> list[Phase]:
    def drawings(lessons_each: int, text_slots: int) -> Drawings:
        return Drawings(
            vocabulary=vocabulary,
            eos=EOS,
            seeds=TRAINING_SEEDS,
            resolution=VISION.resolution,
            patches_across=VISION.resolution // VISION.patch_size,
            pictures=PICTURES,
            lessons_each=lessons_each,
            text_slots=text_slots,
        )

    return [
        Phase("eye", eye, drawings(0, 0), text=False),
        Phase("shared", shared, drawings(16, SHARED_SLOTS), patch_weight=0.3),
        Phase("single", single, drawings(1, SINGLE_SLOTS), patch_weight=0.3),
    ]


def _config(vocabulary: Vocabulary) -> PaliGemmaConfig:
    decoder = DecoderConfig(
        width=WIDTH,
        depth=4,
        mlp_dim=640,
        num_heads=3,
        num_kv_heads=1,
        head_dim=64,
        vocab_size=vocabulary.size,
        max_positions=1024,
    )
    image_token = vocabulary.id(IMAGE)
    return PaliGemmaConfig(VISION, decoder, image_token=image_token, stop_tokens=(EOS,))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m pgcli.training", description=__doc__)
    add = parser.add_argument
    add("--out", type=Path, default=Path("runs/demo"), help="the run's folder")
    add("--eye", type=int, default=2000, help="steps that teach the eye alone")
    add("--shared", type=int, default=2400, help="steps with many lessons to a picture")
    add("--single", type=int, default=500, help="steps under PaliGemma's own mask")
    add("--warmup", type=int, default=200, help="steps over which the rate climbs")
    add("--decay", type=int, default=2000, help="last steps, over which the rate falls")
    add("--rate", type=float, default=1.5e-3)
    add("--minutes", type=float, default=float("inf"), help="stop after so long")
    add("--workers", type=int, default=1, help="processes that draw")
    add("--compile", action="store_true", help="compile first: a minute, then a quarter faster")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


if __name__ == "__main__":
    main()
