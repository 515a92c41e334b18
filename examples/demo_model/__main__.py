"""Trains the built-in model, phase by phase; the same command again resumes.

    python -m examples.demo_model runs
    torchrun --nproc-per-node 2 -m examples.demo_model runs
    python -m examples.demo_model runs --phase vision --steps 100 --batch-size 4

Each phase has a folder in `runs`; that of the model is `runs/demo`. benchmarks/trials.md
says how long they take. The last command tries one phase, after those that it begins with.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from random import Random

import numpy
import torch
from torch import Tensor

from examples.demo_model.build_tokenizer import IMAGE, build_tokenizer
from examples.demo_model.examples import tokenizer_corpus
from examples.demo_model.init import init_weights, whiten_patches
from examples.demo_model.lettered import page_of_words
from examples.demo_model.mask_autoencoder import MaskAutoencoder, MaskTask, mask_codes
from examples.demo_model.muon import Muon
from examples.demo_model.phases import PHASES, Phase
from examples.demo_model.scenes import TOKENIZER_SEEDS, TRAINING_SEEDS
from examples.demo_model.task import HALF, DemoLearner, DrawingsTask, SceneDataset, square_pixels
from examples.run_trainer import run_trainer
from pgcli.engine.tokenizer import Tokenizer
from pgcli.model.config import DecoderConfig, PaliGemmaConfig, VisionConfig
from pgcli.model.paligemma import PaliGemma
from pgcli.model.siglip import normalize_pixels
from pgcli.training.processes import Processes, joined_processes

WIDTH = 192
VISION = VisionConfig(width=WIDTH, depth=4, mlp_dim=768, num_heads=3, patch_size=14, resolution=112)
EOS = 1
MASKS, MASK_STEPS, MASK_BATCH = "masks", 500, 32


def make(runs: Path, name: str, processes: Processes, steps: int | None, batch: int | None) -> None:
    """Train a phase, or write the mean of several; the folders of earlier ones are in `runs`."""
    folder = runs / name
    if name == MASKS:
        task = MaskTask(MaskAutoencoder(), batch or MASK_BATCH)
        train = {"steps": steps or MASK_STEPS, "learning_rate": 2e-3, "warmup": 50}
        run_trainer(task, folder, processes, **train, eval_every=100)
        return
    phase, tokenizer = PHASES[name], runs / "tokenizer"
    if not isinstance(phase, Phase):
        learner = DemoLearner.load(*(runs / part for part in phase))
        processes.from_first(lambda: learner.save(folder, tokenizer, torch.bfloat16))
        return
    processes.from_first(lambda: write_tokenizer(tokenizer))
    vocabulary = Tokenizer.from_folder(tokenizer)
    training = SceneDataset(
        phase,
        vocabulary,
        EOS,
        TRAINING_SEEDS[phase.first_drawing :],
        VISION.resolution,
        VISION.resolution // VISION.patch_size,
        batch or phase.batch_size,
        mask_codes(runs / MASKS),
    )
    learner = (
        DemoLearner(new_model(vocabulary))
        if phase.weights is None
        else DemoLearner.load(runs / phase.weights)
    )
    steps = steps or phase.steps
    run_trainer(
        DrawingsTask(learner, training, tokenizer, workers=1, processes=processes),
        folder,
        processes,
        steps=steps,
        learning_rate=phase.rate,
        warmup=min(50, steps // 4),
        optimizer=Muon,
        eval_every=phase.eval_every,
    )


def write_tokenizer(folder: Path) -> None:
    """Learn the tokenizer, unless it is there."""
    if not (folder / "tokenizer.json").exists():
        corpus = tokenizer_corpus(TOKENIZER_SEEDS)
        sizes = {"resolution": VISION.resolution, "image_tokens": VISION.num_patches}
        build_tokenizer(folder, corpus, **sizes)


def new_model(vocabulary: Tokenizer) -> PaliGemma:
    """The model as its training begins."""
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
    config = PaliGemmaConfig(VISION, decoder, image_token_id=image_token_id, stop_tokens=(EOS,))
    model = PaliGemma(config)
    init_weights(model, seed=0)
    whiten_patches(model.vision.embeddings.patch_embedding, _pages(TOKENIZER_SEEDS[:256]))
    return model


def _pages(seeds: range) -> Tensor:
    """Pages of words as the vision tower reads them."""
    pages = [square_pixels(page_of_words(s), VISION.resolution, Random(s)) for s in seeds]
    return normalize_pixels(torch.from_numpy(numpy.stack(pages)), HALF, HALF, torch.float32)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m examples.demo_model")
    parser.add_argument("runs", type=Path, help="folder of the phases' folders")
    parser.add_argument("--phase", choices=(MASKS, *PHASES), help="the only one")
    parser.add_argument("--steps", type=int, help="in place of the phase's own number")
    parser.add_argument("--batch-size", type=int, help="in place of the phase's own")
    options = parser.parse_args()
    with joined_processes("cpu") as joined:
        for phase_name in [options.phase] if options.phase else (MASKS, *PHASES):
            make(options.runs, phase_name, joined, options.steps, options.batch_size)
