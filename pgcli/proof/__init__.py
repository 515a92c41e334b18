"""Prove on a checkpoint that this code answers as transformers does, stage by stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib.metadata import version
from pathlib import Path
from time import perf_counter

import torch

from pgcli.checkpoints.config import read_config
from pgcli.checkpoints.find import Checkpoint
from pgcli.checkpoints.preprocessing import read_preprocessing
from pgcli.checkpoints.weight_files import total_bytes
from pgcli.device.select import choose_device
from pgcli.engine.tokenizer import Tokenizer
from pgcli.errors import NoInputError
from pgcli.images import ImageLimits, ImageSpec, decode
from pgcli.proof import compare, ours, theirs
from pgcli.proof.compare import Numbers, Tokens
from pgcli.proof.inputs import PROMPTS, Inputs, Outputs, make
from pgcli.proof.preparation import levels, prompts
from pgcli.proof.room import dtypes
from pgcli.proof.verdict import Comparison, Proof
from pgcli.records import DecodedImage, Item

#: How many pictures are looked at, of however many there are.
MOST_PICTURES = 8

Waiting = Callable[[str], AbstractContextManager[None]]


def prove(
    checkpoint: Checkpoint,
    items: Sequence[Item],
    *,
    device: str,
    dtype: str,
    waiting: Waiting,
) -> Proof:
    """Run both programs on the checkpoint, one after the other, in each dtype asked for.

    `auto` is float32, and bfloat16 too, each where it fits into memory. Raises NoInputError where
    no picture can be read, NoUsableDevice where the memory is too small, UsageError without
    transformers, InvalidCheckpoint for a broken checkpoint.
    """
    folder = checkpoint.folder
    theirs.imported()
    place, config = choose_device(device), read_config(folder)
    vocabulary = Tokenizer.from_folder(folder)
    preprocessing = read_preprocessing(folder, config.vision.resolution)
    spec = ImageSpec(config.vision.resolution, preprocessing.resample)
    pictures = _readable(items, spec)
    given = make(pictures, vocabulary, config, preprocessing)
    wanted, left_out = dtypes(dtype, config, place, len(given.ids), total_bytes(folder))
    with theirs.silence():
        comparisons = tuple(_compare(folder, given, number, place, waiting) for number in wanted)
        told, looked = prompts(folder, vocabulary, PROMPTS), levels(folder, pictures, preprocessing)
    return Proof(
        device=str(place),
        transformers=version("transformers"),
        pictures=len(pictures),
        rows=len(given.ids),
        prompts=told,
        levels=looked,
        comparisons=comparisons,
        left_out=tuple(left_out),
    )


def _readable(items: Sequence[Item], spec: ImageSpec) -> list[DecodedImage]:
    pictures = [decode(item, spec, ImageLimits()) for item in items[:MOST_PICTURES]]
    good = [picture for picture in pictures if picture.fault is None]
    if not good:
        fault = pictures[0].fault if pictures else None
        raise NoInputError(
            "no picture to compare with" + (f": {fault.message}" if fault else ""),
            hint="leave out --images: pictures that are drawn here take their place",
        )
    return good


def _compare(
    folder: Path, given: Inputs, dtype: torch.dtype, device: torch.device, waiting: Waiting
) -> Comparison:
    """Both programs in one dtype. The first model is gone before the second is loaded."""
    name = str(dtype).removeprefix("torch.")
    started = perf_counter()
    with waiting(f"{name}: this code answers"):
        mine = ours.answers(folder, given, dtype, device)
    theirs.release()
    between = perf_counter()
    # cuDNN would compute transformers' patch convolution in tf32
    with waiting(f"{name}: transformers answers"), torch.backends.cudnn.flags(allow_tf32=False):
        model = theirs.load(folder, dtype, device)
        other = theirs.outputs(model, given)
        vision, logits, tokens = _stages(mine, other, None, given, dtype)
        if dtype != torch.float32 or not (vision.same and logits.same):
            eager = theirs.another_way(model, given)
            vision, logits, tokens = _stages(mine, other, eager, given, dtype)
        del model
    theirs.release()
    ended = perf_counter()
    return Comparison(name, vision, logits, tokens, between - started, ended - between)


def _stages(
    mine: Outputs, other: Outputs, eager: Outputs | None, given: Inputs, dtype: torch.dtype
) -> tuple[Numbers, Numbers, Tokens]:
    exact = dtype == torch.float32
    features = None if eager is None else eager.features_BPD
    logits = None if eager is None else eager.logits_BV
    return (
        compare.numbers(
            "vision features", mine.features_BPD, other.features_BPD, features, exact=exact
        ),
        compare.numbers("prefill logits", mine.logits_BV, other.logits_BV, logits, exact=exact),
        compare.tokens(mine, other, eager, given.limits.image_token, exact=exact),
    )
