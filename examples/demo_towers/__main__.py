"""Trains the built-in towers in two runs; the same command again resumes.

    python -m examples.demo_towers runs

`runs/first` learns what captions say, `runs/towers` also where objects are.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch

from examples.demo_model.scenes import TOKENIZER_SEEDS, TRAINING_SEEDS
from examples.demo_towers.captions import tokenizer_corpus
from examples.demo_towers.task import CaptionedScenes, CaptionedScenesTask
from examples.run_trainer import run_trainer
from pgcli.checkpoints import weights
from pgcli.checkpoints.config import read_config
from pgcli.checkpoints.find import BUILTIN
from pgcli.checkpoints.model_description import read_description
from pgcli.embedding.texts import TextFormat, TextProcessor, canonical_text
from pgcli.model.config import TextConfig, TwoTowersConfig
from pgcli.model.two_towers import TwoTowers
from pgcli.training.encoders.contrastive import SIGLIP_BIAS, SIGLIP_SCALE
from pgcli.training.encoders.learned_tokenizer import EOS, PAD, learn_tokenizer
from pgcli.training.encoders.new_models import init_towers, two_towers_of

MAX_POSITIONS = 32
TOKENS = 600
BATCH_SIZE = 48  # drawings of a step, with three texts each
FIRST, SECOND = "first", "towers"


def train(
    folder: Path,
    first: Path | None = None,
    *,
    steps: int,
    batch_size: int = BATCH_SIZE,
    copies: int = 0,
    copy_weight: float = 0.5,
    loss: str = "sigmoid",
    **options: float,
) -> None:
    """Train new towers, or those of a first run; `copies` drawings of a step are there twice."""
    tokenizer = learn_tokenizer(tokenizer_corpus(TOKENIZER_SEEDS[:2000]), max_tokens=TOKENS)
    format = TextFormat(MAX_POSITIONS, bos=None, eos=EOS, pad=PAD, clean=canonical_text)
    model = (
        new_towers(tokenizer.get_vocab_size())
        if first is None
        else two_towers_of(first, read_description(first), torch.device("cpu"))
    )
    training = CaptionedScenes(
        TextProcessor(tokenizer, format),
        TRAINING_SEEDS,
        model.config.vision.resolution,
        batch_size,
        copies=copies,
    )
    task = CaptionedScenesTask(model, tokenizer, training, loss, copy_weight, workers=1)
    run_trainer(task, folder, steps=steps, **{"warmup": 50, "eval_every": 100} | options)


def new_towers(tokens: int) -> TwoTowers:
    """New towers with the built-in PaliGemma's vision tower."""
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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m examples.demo_towers")
    parser.add_argument("runs", type=Path, help="folder of the runs' folders")
    runs = parser.parse_args().runs
    train(runs / FIRST, steps=1000, copies=12, learning_rate=1e-3)
    train(runs / SECOND, runs / FIRST, steps=230, copies=24, copy_weight=2.0, learning_rate=5e-4)
