"""Trains the built-in model: `python -m examples.demo_model --out runs/demo`; rerun to resume."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from examples.demo_model.build_tokenizer import IMAGE, build_tokenizer
from examples.demo_model.dataset import SceneDataset
from examples.demo_model.examples import tokenizer_corpus
from examples.demo_model.init import init_weights
from examples.demo_model.optimizer import Schedule
from examples.demo_model.scenes import TOKENIZER_SEEDS, TRAINING_SEEDS
from examples.demo_model.trainer import Phase, Trainer
from pgcli.checkpoints.save import save
from pgcli.engine.tokenizer import Tokenizer
from pgcli.model.config import DecoderConfig, PaliGemmaConfig, VisionConfig
from pgcli.model.paligemma import PaliGemma
from pgcli.printable import printable

WIDTH = 192
VISION = VisionConfig(width=WIDTH, depth=4, mlp_dim=768, num_heads=3, patch_size=14, resolution=112)
EOS = 1
PACKED_SLOTS = 128  # text tokens of a row with several examples
SINGLE_SLOTS = 48  # longer than any example


def main() -> None:
    options = _options()
    torch.set_float32_matmul_precision("high")
    if not (options.out / "tokenizer.json").exists():  # a resumed run keeps its tokenizer
        build_tokenizer(
            options.out,
            tokenizer_corpus(TOKENIZER_SEEDS),
            resolution=VISION.resolution,
            image_tokens=VISION.num_patches,
        )
    vocabulary = Tokenizer.from_folder(options.out)
    model = PaliGemma(_config(vocabulary))
    init_weights(model, seed=0)
    model.to(options.device)
    phases = _phases(vocabulary, options)
    steps = sum(phase.steps for phase in phases)
    schedule = Schedule(steps, options.warmup, options.decay, options.rate)
    trainer = Trainer(model, phases, schedule, options.out)
    if options.compile:
        model.vision.compile(dynamic=False)
        model.compile(dynamic=False)
    complete = trainer.train(
        workers=options.workers, minutes=options.minutes, save_every=500, log_every=50
    )
    save(model, options.out, dtype=torch.bfloat16)
    if not complete:
        message = f"{options.out} is at step {trainer.step} of {steps}; rerun the command to resume"
        raise SystemExit(printable(message))


def _phases(vocabulary: Tokenizer, options: argparse.Namespace) -> list[Phase]:
    def dataset(max_examples: int, text_slots: int) -> SceneDataset:
        return SceneDataset(
            vocabulary=vocabulary,
            eos=EOS,
            seeds=TRAINING_SEEDS,
            resolution=VISION.resolution,
            patches_per_side=VISION.resolution // VISION.patch_size,
            batch_size=options.batch_size,
            max_examples=max_examples,
            text_slots=text_slots,
        )

    return [
        Phase("vision", options.vision_steps, dataset(0, 0), has_text=False),
        Phase("packed", options.packed_steps, dataset(16, PACKED_SLOTS), patch_weight=0.3),
        Phase("single", options.single_steps, dataset(1, SINGLE_SLOTS), patch_weight=0.3),
    ]


def _config(vocabulary: Tokenizer) -> PaliGemmaConfig:
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
    image_token_id = vocabulary.id(IMAGE)
    return PaliGemmaConfig(VISION, decoder, image_token_id=image_token_id, stop_tokens=(EOS,))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.demo_model", description=__doc__)
    add = parser.add_argument
    add("--out", type=Path, default=Path("runs/demo"), help="folder of the run")
    add("--vision-steps", type=int, default=2000, help="steps that train the vision tower alone")
    add("--packed-steps", type=int, default=2400, help="steps with many examples per image")
    add("--single-steps", type=int, default=500, help="steps with PaliGemma's own mask")
    add("--batch-size", type=int, default=64, help="images per step")
    add("--warmup", type=int, default=200, help="first steps, in which the learning rate rises")
    add("--decay", type=int, default=2000, help="last steps, in which the learning rate falls")
    add("--rate", type=float, default=1.5e-3, help="the learning rate")
    add("--minutes", type=float, default=float("inf"), help="time limit")
    add("--workers", type=int, default=1, help="processes that draw")
    add("--compile", action="store_true", help="compile for a minute, then train a quarter faster")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


if __name__ == "__main__":
    main()
