"""Trains the built-in towers, in two runs; a command that was interrupted resumes.

    python -m examples.demo_towers --out runs/first
    python -m examples.demo_towers --out runs/towers --weights runs/first --steps 230 --rate 5e-4 \\
        --copies 24 --copy-weight 2

The first learns what captions say, the second also where objects are.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch

from examples.demo_model.scenes import TOKENIZER_SEEDS, TRAINING_SEEDS, VALIDATION_SEEDS
from examples.demo_model.train_with_bar import train_with_bar
from examples.demo_towers.captions import tokenizer_corpus
from examples.demo_towers.dataset import CaptionedScenes
from examples.demo_towers.task import CaptionedScenesTask
from pgcli.checkpoints import weights
from pgcli.checkpoints.config import read_config
from pgcli.checkpoints.find import BUILTIN
from pgcli.checkpoints.model_description import read_description
from pgcli.embedding.texts import TextFormat, TextProcessor, canonical_text
from pgcli.model.config import TextConfig, TwoTowersConfig
from pgcli.model.two_towers import TwoTowers
from pgcli.training.contrastive import SIGLIP_BIAS, SIGLIP_SCALE
from pgcli.training.learned_tokenizer import EOS, PAD, learn_tokenizer
from pgcli.training.new_models import init_towers, two_towers_of
from pgcli.training.trainer import Trainer, TrainerOptions

MAX_POSITIONS = 32
TOKENS = 600


def main() -> None:
    options = _options()
    torch.set_num_threads(options.threads)
    tokenizer = learn_tokenizer(tokenizer_corpus(TOKENIZER_SEEDS[:2000]), max_tokens=TOKENS)
    texts = TextProcessor(
        tokenizer, TextFormat(MAX_POSITIONS, bos=None, eos=EOS, pad=PAD, clean=canonical_text)
    )
    model = _model(tokenizer.get_vocab_size(), options.weights)

    def dataset(seeds: range, *, copies: int, is_augmented: bool) -> CaptionedScenes:
        return CaptionedScenes(
            texts,
            seeds,
            model.config.vision.resolution,
            options.batch_size,
            copies=copies,
            is_augmented=is_augmented,
        )

    task = CaptionedScenesTask(
        model,
        tokenizer,
        dataset(TRAINING_SEEDS, copies=options.copies, is_augmented=True),
        dataset(VALIDATION_SEEDS, copies=0, is_augmented=False),
        options.loss,
        options.copy_weight,
        options.workers,
    )
    state = options.out.with_name(f"{options.out.name}.pgcli")
    for folder in (options.out, state):
        folder.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(
        task,
        TrainerOptions(
            steps=options.steps,
            learning_rate=options.rate,
            warmup=options.warmup,
            weight_decay=0.05,
            betas=(0.9, 0.98),
            eval_every=options.eval_every,
        ),
        options.out,
        state,
    )
    train_with_bar(trainer, options.minutes)


def _model(tokens: int, folder: Path | None) -> TwoTowers:
    """The towers of an earlier run, or new ones with the built-in PaliGemma's vision tower."""
    if folder is not None:
        description = read_description(folder)
        return two_towers_of(folder, description, torch.device("cpu"))
    demo = weights.load(BUILTIN, read_config(BUILTIN), dtype=torch.float32)
    vision = demo.config.vision
    text = TextConfig(
        width=vision.width,
        depth=2,
        mlp_dim=vision.mlp_dim,
        num_heads=vision.num_heads,
        vocab_size=tokens,
        max_positions=MAX_POSITIONS,
    )
    model = TwoTowers(TwoTowersConfig("siglip", vision, text, embedding_dim=vision.width))
    init_towers(model, seed=0, scale=math.log(SIGLIP_SCALE), bias=SIGLIP_BIAS)
    model.vision.load_state_dict(demo.vision.state_dict())
    return model


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.demo_towers", description=__doc__)
    add = parser.add_argument
    add("--out", type=Path, default=Path("runs/towers"), help="folder of the run")
    add("--loss", choices=("sigmoid", "softmax"), default="sigmoid")
    add("--steps", type=int, default=1000)
    add("--batch-size", type=int, default=48, help="drawings per step, with three texts each")
    add("--copies", type=int, default=12, help="drawings of a step that are there twice")
    add("--copy-weight", type=float, default=0.5, help="of the loss of finding these")
    add("--weights", type=Path, help="folder of an earlier run, whose towers are trained further")
    add("--warmup", type=int, default=50, help="first steps, in which the learning rate rises")
    add("--rate", type=float, default=1e-3, help="the learning rate")
    add("--eval-every", type=int, default=100, help="steps between two evaluations")
    add("--minutes", type=float, default=float("inf"), help="time limit")
    add("--threads", type=int, default=1, help="of the model's arithmetic")
    add("--workers", type=int, default=1, help="processes that draw")
    return parser.parse_args()


if __name__ == "__main__":
    main()
