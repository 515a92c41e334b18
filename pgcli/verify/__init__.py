"""Compares this code with transformers on a checkpoint, stage by stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from time import perf_counter

import torch

from pgcli.checkpoints.find import Checkpoint
from pgcli.checkpoints.model_description import read_description
from pgcli.checkpoints.weight_files import total_bytes
from pgcli.device.select import choose_device
from pgcli.errors import NoInputError
from pgcli.images import ImageLimits, ImageSpec, decode
from pgcli.records import DecodedImage, Item
from pgcli.verify import reference
from pgcli.verify.case import Case, Outputs
from pgcli.verify.compare import compare_tensors, compare_tokens
from pgcli.verify.dtypes import choose_dtypes
from pgcli.verify.paligemma import paligemma_case
from pgcli.verify.preprocessing import compare_pixels
from pgcli.verify.report import ComparedStages, Comparison, Proof
from pgcli.verify.towers import towers_case

MAX_IMAGES = 8  # images that are compared, at most
#: Shows the current step while it is entered.
Waiting = Callable[[str], AbstractContextManager[object]]


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
    folder, torch_device = checkpoint.folder, choose_device(device)
    description, read_images = read_description(folder), partial(readable_images, items)
    if description.kind == "paligemma":
        case = paligemma_case(folder, read_images, torch_device)
    else:
        case = towers_case(folder, description, read_images, torch_device)
    dtypes, skipped = choose_dtypes(dtype, torch_device, case, total_bytes(folder))
    with reference.quiet_transformers():
        comparisons = tuple(compare_in_dtype(case, dtype, waiting) for dtype in dtypes)
        texts = None if case.texts is None else case.texts()
        levels = compare_pixels(folder, case.images, case.preprocessing)
    return Proof(
        device=str(torch_device),
        program=case.program,
        images=len(case.images),
        rows=case.rows,
        texts=texts,
        levels=levels,
        comparisons=comparisons,
        skipped=tuple(skipped),
        not_followed=case.not_followed,
    )


def readable_images(items: Sequence[Item], spec: ImageSpec) -> list[DecodedImage]:
    """The first readable images. Raises NoInputError without any."""
    images = [decode(item, spec, ImageLimits()) for item in items[:MAX_IMAGES]]
    readable = [image for image in images if image.fault is None]
    if not readable:
        fault = images[0].fault if images else None
        raise NoInputError(
            "no image to compare with" + (f": {fault.message}" if fault else ""),
            hint="drop --source to compare with generated images",
        )
    return readable


def compare_in_dtype(case: Case, dtype: torch.dtype, waiting: Waiting) -> Comparison:
    """Both programs in one dtype. The first model is freed before the second is loaded.

    bfloat16, and float32 if it differs, are also compared with `eager` attention in transformers,
    which differs from its default by rounding noise. float16, which may overflow in the reference,
    is compared with the reference in float32, with the noise of the reference in bfloat16.
    """
    name, exact = str(dtype).removeprefix("torch."), dtype == torch.float32
    is_half = dtype == torch.float16
    start = perf_counter()
    with waiting(f"{name}: running this code"):
        ours = case.ours(dtype)
    reference.free_memory()
    middle = perf_counter()
    # cuDNN would compute the reference's patch convolution in tf32
    with waiting(f"{name}: running the reference"), torch.backends.cudnn.flags(allow_tf32=False):
        model = case.load(torch.float32 if is_half else dtype)
        expected = case.expected(model)
        stages = compare_stages(case, ours, expected, None, exact=exact)
        is_same = exact and all(stage.same for stage in stages)
        if is_half:
            del model
            model = case.load(torch.bfloat16)
        noisy = None if is_same else case.expected(model) if is_half else case.eager(model)
        if noisy is not None:
            stages = compare_stages(case, ours, expected, noisy, exact=exact)
        del model
    reference.free_memory()
    return Comparison(name, stages, middle - start, perf_counter() - middle)


def compare_stages(
    case: Case, ours: Outputs, expected: Outputs, eager: Outputs | None, *, exact: bool
) -> ComparedStages:
    """The comparison of each stage's tensors, and of the tokens if there are any."""
    stages: ComparedStages = tuple(
        compare_tensors(
            stage,
            tensor,
            expected.tensors[stage],
            None if eager is None else eager.tensors[stage],
            exact=exact,
            exact_bound=case.bound,
            terms=ours.terms.get(stage, 0.0),
        )
        for stage, tensor in ours.tensors.items()
    )
    if not ours.tokens:
        return stages
    return (*stages, compare_tokens(ours, expected, eager, case.image_token, exact=exact))
