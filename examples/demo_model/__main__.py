"""Trains the built-in model, one phase a run; a command that stopped resumes.

    python -m examples.demo_model masks --out runs/masks
    python -m examples.demo_model vision --masks runs/masks --out runs/vision
    python -m examples.demo_model packed --masks runs/masks --weights runs/vision --out runs/packed

The phases are `masks`, `vision`, `packed`, `longer`, `single`, `crowded`, `asked` and `four`;
docs/built-in-model.md has all commands, with the averages between the last ones.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy
import torch
from torch import Tensor

from examples.demo_model.build_tokenizer import IMAGE, build_tokenizer
from examples.demo_model.dataset import SceneDataset, square_pixels
from examples.demo_model.examples import tokenizer_corpus
from examples.demo_model.init import init_weights, whiten_patches
from examples.demo_model.lettered import page_of_words
from examples.demo_model.mask_autoencoder import MaskAutoencoder, MaskTask, load_autoencoder
from examples.demo_model.muon import Muon
from examples.demo_model.phases import PHASES, Phase
from examples.demo_model.scenes import TOKENIZER_SEEDS, TRAINING_SEEDS, VALIDATION_SEEDS
from examples.demo_model.task import HALF, DemoLearner, DrawingsTask
from examples.demo_model.train_with_bar import train_with_bar
from examples.demo_model.training_examples import mask_codes
from pgcli.engine.tokenizer import Tokenizer
from pgcli.model.config import DecoderConfig, PaliGemmaConfig, VisionConfig
from pgcli.model.paligemma import PaliGemma
from pgcli.model.siglip import normalize_pixels
from pgcli.training.processes import ALONE, Processes, connect, is_started_by_torchrun
from pgcli.training.task import TrainingTask
from pgcli.training.trainer import Trainer, TrainerOptions

WIDTH = 192
VISION = VisionConfig(width=WIDTH, depth=4, mlp_dim=768, num_heads=3, patch_size=14, resolution=112)
EOS = 1
TILT_RESOLUTION = 4.0  # degrees between the masks that answers have codes of


def main() -> None:
    options = _options()
    torch.set_num_threads(options.threads)
    processes = ALONE
    if is_started_by_torchrun():
        processes = connect()
        processes.join("cpu")
    phase = PHASES[options.phase]
    phase = replace(phase, steps=options.steps or phase.steps, rate=options.rate or phase.rate)
    state = options.out.with_name(f"{options.out.name}.pgcli")
    for folder in (options.out, state):
        folder.mkdir(parents=True, exist_ok=True)
    if options.phase == "masks":
        task: TrainingTask = MaskTask(MaskAutoencoder(), options.batch_size)
    else:
        task = _drawings_task(phase, options, processes)
    trainer = Trainer(
        task,
        TrainerOptions(
            steps=phase.steps,
            learning_rate=phase.rate,
            warmup=min(options.warmup, phase.steps // 4),
            weight_decay=0.05,
            betas=(0.9, 0.98),
            optimizer=Muon if phase.muon else torch.optim.AdamW,
            eval_every=options.eval_every,
        ),
        options.out,
        state,
        processes,
    )
    train_with_bar(trainer, options.minutes)
    if processes is not ALONE:
        processes.leave()


def _drawings_task(phase: Phase, options: argparse.Namespace, processes: Processes) -> DrawingsTask:
    tokenizer = options.weights or options.out
    if not (tokenizer / "tokenizer.json").exists():
        build_tokenizer(
            tokenizer,
            tokenizer_corpus(TOKENIZER_SEEDS),
            resolution=VISION.resolution,
            image_tokens=VISION.num_patches,
        )
    vocabulary = Tokenizer.from_folder(tokenizer)
    weights = options.weights
    learner = DemoLearner(_new_model(vocabulary)) if weights is None else DemoLearner.load(weights)
    training = SceneDataset(
        vocabulary=vocabulary,
        eos=EOS,
        seeds=TRAINING_SEEDS[phase.first_drawing :],
        resolution=VISION.resolution,
        patches_per_side=VISION.resolution // VISION.patch_size,
        batch_size=options.batch_size,
        max_examples=phase.max_examples,
        text_slots=phase.text_slots,
        scene_rates=phase.scene_rates if options.words else (1, 0, 0),
        codes=mask_codes(load_autoencoder(options.masks), TILT_RESOLUTION),
        example_rates=phase.example_rates,
        scene_choices=phase.scene_choices,
    )
    return DrawingsTask(
        learner,
        training,
        replace(training, seeds=VALIDATION_SEEDS),
        tokenizer,
        has_text=phase.max_examples > 0,
        patch_weight=phase.patch_weight,
        length_groups=phase.length_groups,
        dtype=phase.dtype,
        workers=options.workers,
        processes=processes,
    )


def _new_model(vocabulary: Tokenizer) -> PaliGemma:
    model = PaliGemma(_config(vocabulary))
    init_weights(model, seed=0)
    whiten_patches(model.vision.embeddings.patch_embedding, _pages(TOKENIZER_SEEDS[:256]))
    return model


def _pages(seeds: range) -> Tensor:
    """Pages of words as the vision tower reads them."""
    pages = [square_pixels(page_of_words(s), VISION.resolution, Random(s)) for s in seeds]
    return normalize_pixels(torch.from_numpy(numpy.stack(pages)), HALF, HALF, torch.float32)


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
    parser = argparse.ArgumentParser(
        prog="python -m examples.demo_model",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("phase", choices=tuple(PHASES))
    add("--out", type=Path, required=True, help="folder of the run")
    add("--weights", type=Path, help="folder of the model that is trained further")
    add("--masks", type=Path, default=Path("runs/masks"), help="folder of the phase `masks`")
    add("--words", action=argparse.BooleanOptionalAction, default=True, help="draw words, too")
    add("--steps", type=int, help="in place of the phase's own number")
    add("--rate", type=float, help="learning rate, in place of the phase's own")
    add("--batch-size", type=int, default=16, help="drawings per step and process")
    add("--warmup", type=int, default=50, help="first steps, in which the learning rate rises")
    add("--eval-every", type=int, default=100, help="steps between two evaluations")
    add("--minutes", type=float, default=float("inf"), help="time limit")
    add("--threads", type=int, default=1, help="of the model's arithmetic")
    add("--workers", type=int, default=1, help="processes that draw")
    return parser.parse_args()


if __name__ == "__main__":
    main()
