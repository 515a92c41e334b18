"""Compares this code with transformers or open_clip on two towers and classifiers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pgcli.checkpoints.find import Checkpoint
from pgcli.checkpoints.model_description import ModelDescription, image_preprocessing
from pgcli.checkpoints.preprocessing import Preprocessing
from pgcli.checkpoints.weight_files import total_bytes
from pgcli.checkpoints.weights import count_parameters
from pgcli.device.select import choose_device, choose_dtype, cpu_has_bfloat16
from pgcli.embedding.loader import encoder_config, read_model, text_processor
from pgcli.embedding.texts import TextProcessor
from pgcli.engine.image_spec import image_spec
from pgcli.engine.memory import LARGE_PARAMETERS, check_fits
from pgcli.errors import UsageError
from pgcli.model.cpu.optimize import optimize_encoders_for_cpu
from pgcli.model.siglip import normalize_pixels
from pgcli.proof import reference
from pgcli.proof.compare import compare_tensors
from pgcli.proof.preprocessing import PromptComparison, compare_pixels, compare_prompts
from pgcli.proof.report import Comparison, Proof, Stages, Waiting, compare_programs
from pgcli.proof.tower_outputs import (
    Outputs,
    TowerInputs,
    load_reference,
    our_outputs,
    reference_outputs,
)
from pgcli.records import DecodedImage

#: Texts of different lengths; the last is cut.
TEXTS = (
    "a red star",
    "A photo of two dogs, a cat & a polar_bear!",
    "three blue circles to the left of a small yellow square, seen from above",
    "a text that has more tokens than any text tower has positions for " * 12,
)
EXACT = 1e-5  # the bound of float32, of values up to 1


def prove_towers(
    checkpoint: Checkpoint,
    description: ModelDescription,
    decoded: Callable[[Any], list[DecodedImage]],
    *,
    device: str,
    dtype: str,
    waiting: Waiting,
) -> Proof:
    """Run both programs on the checkpoint, one after the other, in each requested dtype.

    `decoded` prepares the images for an ImageSpec. Raises as `proof.prove`.
    """
    folder, torch_device = checkpoint.folder, choose_device(device)
    program = _program(description)
    preprocessing = image_preprocessing(folder, description)
    images = decoded(image_spec(description.vision.resolution, preprocessing))
    texts = text_processor(folder, description)
    inputs = _inputs(images, preprocessing, texts)
    dtypes, left_out = _dtypes(dtype, torch_device, folder, description)
    with reference.quiet_transformers():
        comparisons = tuple(
            _compare(folder, description, inputs, one, torch_device, waiting) for one in dtypes
        )
        is_own = description.open_clip is None
        tokens = None if texts is None else _compare_tokens(folder, texts)
        levels = compare_pixels(folder, images, preprocessing) if is_own else None
    return Proof(
        str(torch_device), program, len(images), None, tokens, levels, comparisons, tuple(left_out)
    )


def _program(description: ModelDescription) -> str:
    """The reference's name and version; UsageError if it is not installed."""
    if description.open_clip is None:
        reference.import_transformers()
        return f"transformers {version('transformers')}"
    try:
        import open_clip
    except (ImportError, RuntimeError) as missing:  # RuntimeError: torchvision of another build
        raise UsageError(
            f"this checkpoint is compared with open_clip, which cannot be imported: {missing}",
            hint="python -m pip install open_clip_torch",
        ) from missing
    return f"open_clip {open_clip.__version__}"


def _inputs(
    images: Sequence[DecodedImage], preprocessing: Preprocessing, texts: TextProcessor | None
) -> TowerInputs:
    pixels = [image.pixels for image in images if image.pixels is not None]
    mean, std = torch.tensor(preprocessing.mean), torch.tensor(preprocessing.std)
    stacked = torch.from_numpy(np.stack(pixels))
    return TowerInputs(
        normalize_pixels(stacked, mean, std, torch.float32),
        None if texts is None else texts(TEXTS),
    )


def _dtypes(
    requested: str, device: torch.device, folder: Path, description: ModelDescription
) -> tuple[list[torch.dtype], list[str]]:
    """The dtypes to compare in, and the reasons for those that are skipped."""
    parameters = count_parameters(encoder_config(description))
    if requested != "auto":
        chosen = [choose_dtype(requested, device, total_bytes(folder))]
    else:
        chosen = [torch.float32, torch.bfloat16]
    check_fits(parameters, chosen[0], device, "none")
    is_slow = device.type == "cpu" and not cpu_has_bfloat16() and parameters > LARGE_PARAMETERS
    if requested == "auto" and is_slow:
        return chosen[:1], ["bfloat16: slow on this processor; add --dtype bfloat16"]
    return chosen, []


def _compare(
    folder: Path,
    description: ModelDescription,
    inputs: TowerInputs,
    dtype: torch.dtype,
    device: torch.device,
    waiting: Waiting,
) -> Comparison:
    """Both programs in one dtype."""

    def ours() -> Outputs:
        model = read_model(folder, description, dtype=dtype, device=device)
        optimize_encoders_for_cpu(model)
        return our_outputs(model, inputs)

    def eager(model: Any) -> Outputs | None:
        if not hasattr(model, "set_attn_implementation"):
            return None
        model.set_attn_implementation("eager")
        return reference_outputs(model, inputs)

    return compare_programs(
        dtype,
        waiting,
        ours=ours,
        load=lambda: load_reference(folder, description, dtype, device),
        theirs=lambda model: reference_outputs(model, inputs),
        eager=eager,
        stages=partial(_stages, dtype == torch.float32),
    )


def _stages(is_exact: bool, mine: Outputs, other: Outputs, eager: Outputs | None) -> Stages:
    return tuple(
        compare_tensors(
            stage,
            ours,
            other[stage],
            None if eager is None else eager[stage],
            exact=is_exact,
            exact_bound=EXACT,
        )
        for stage, ours in mine.items()
    )


def _compare_tokens(folder: Path, texts: TextProcessor) -> PromptComparison:
    """Compare the tokens of each text."""
    given = [*TEXTS]
    if not texts(TEXTS, raw=True).equal(texts(TEXTS)):  # else the file makes them clean itself
        given = [texts.format.clean(text) for text in TEXTS]
    theirs = partial(reference.text_ids, folder, given, texts.format.length)
    return compare_prompts(TEXTS, texts(TEXTS).tolist(), theirs)
