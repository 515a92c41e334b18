"""Compares this code with transformers on a checkpoint, stage by stage."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path

import torch

from pgcli.checkpoints.config import read_config, settings_not_followed
from pgcli.checkpoints.find import Checkpoint
from pgcli.checkpoints.model_description import read_description
from pgcli.checkpoints.preprocessing import read_preprocessing
from pgcli.checkpoints.weight_files import total_bytes
from pgcli.device.select import choose_device
from pgcli.engine.image_spec import image_spec
from pgcli.engine.tokenizer import Tokenizer
from pgcli.errors import NoInputError
from pgcli.images import ImageLimits, ImageSpec, decode
from pgcli.proof import reference
from pgcli.proof.compare import compare_tensors, compare_tokens
from pgcli.proof.dtypes import choose_dtypes
from pgcli.proof.engine_outputs import load_and_run
from pgcli.proof.inputs import PROMPTS, Inputs, StageOutputs, make_inputs
from pgcli.proof.preprocessing import compare_pixels, compare_prompts
from pgcli.proof.reference_outputs import eager_outputs, reference_outputs
from pgcli.proof.report import Comparison, Proof, Stages, Waiting, compare_programs
from pgcli.proof.towers import prove_towers
from pgcli.records import DecodedImage, Item

MAX_IMAGES = 8  # that are compared, of all given


def prove(
    checkpoint: Checkpoint,
    items: Sequence[Item],
    *,
    device: str,
    dtype: str,
    waiting: Waiting,
) -> Proof:
    """Run both programs on the checkpoint, one after the other, in each requested dtype.

    `auto` is float32 and bfloat16, each if it fits into memory. Raises NoInputError if no image can
    be read, NoUsableDevice if there is too little memory, UsageError without transformers, and
    InvalidCheckpoint for a broken checkpoint.
    """
    description = read_description(checkpoint.folder)
    if description.kind == "paligemma":
        return _prove_paligemma(checkpoint.folder, items, device, dtype, waiting)
    return prove_towers(
        checkpoint,
        description,
        partial(_readable, items),
        device=device,
        dtype=dtype,
        waiting=waiting,
    )


def _prove_paligemma(
    folder: Path, items: Sequence[Item], device: str, dtype: str, waiting: Waiting
) -> Proof:
    reference.import_transformers()
    torch_device, config = choose_device(device), read_config(folder)
    tokenizer = Tokenizer.from_folder(folder)
    preprocessing = read_preprocessing(folder, config.vision.resolution)
    images = _readable(items, image_spec(config.vision.resolution, preprocessing))
    inputs = make_inputs(images, tokenizer, config, preprocessing)
    dtypes, skipped = choose_dtypes(
        dtype, config, torch_device, len(inputs.ids), total_bytes(folder)
    )
    with reference.quiet_transformers():
        comparisons = tuple(_compare(folder, inputs, one, torch_device, waiting) for one in dtypes)
        ours = [*map(tokenizer.encode_prompt, PROMPTS)]
        theirs = partial(reference.prompt_ids, folder, PROMPTS)
        prompts = compare_prompts(PROMPTS, ours, theirs)
        pixels = compare_pixels(folder, images, preprocessing)
    return Proof(
        device=str(torch_device),
        program=f"transformers {version('transformers')}",
        images=len(images),
        rows=len(inputs.ids),
        texts=prompts,
        levels=pixels,
        comparisons=comparisons,
        left_out=tuple(skipped),
        not_followed=settings_not_followed(folder, never_generated={config.image_token_id}),
    )


def _readable(items: Sequence[Item], spec: ImageSpec) -> list[DecodedImage]:
    images = [decode(item, spec, ImageLimits()) for item in items[:MAX_IMAGES]]
    readable = [image for image in images if image.fault is None]
    if not readable:
        fault = images[0].fault if images else None
        raise NoInputError(
            "no image to compare with" + (f": {fault.message}" if fault else ""),
            hint="leave out --images to compare with generated images",
        )
    return readable


def _compare(
    folder: Path, inputs: Inputs, dtype: torch.dtype, device: torch.device, waiting: Waiting
) -> Comparison:
    """Both programs in one dtype."""
    return compare_programs(
        dtype,
        waiting,
        ours=lambda: load_and_run(folder, inputs, dtype, device),
        load=lambda: reference.load_reference(folder, dtype, device),
        theirs=lambda model: reference_outputs(model, inputs),
        eager=lambda model: eager_outputs(model, inputs),
        stages=partial(_stages, inputs.vocabulary.image_token, dtype == torch.float32),
    )


def _stages(
    image_token: int,
    exact: bool,
    mine: StageOutputs,
    other: StageOutputs,
    eager: StageOutputs | None,
) -> Stages:
    features = None if eager is None else eager.features_BPD
    logits = None if eager is None else eager.logits_BV
    return (
        compare_tensors(
            "vision features", mine.features_BPD, other.features_BPD, features, exact=exact
        ),
        compare_tensors("prefill logits", mine.logits_BV, other.logits_BV, logits, exact=exact),
        compare_tokens(mine, other, eager, image_token, exact=exact),
    )
