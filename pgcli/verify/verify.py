"""Compares this code with transformers on a checkpoint, stage by stage, and says the verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from time import perf_counter

import torch

from pgcli.checkpoints.config import read_description
from pgcli.checkpoints.families import GENERATING
from pgcli.checkpoints.files import total_bytes
from pgcli.checkpoints.find import Checkpoint
from pgcli.device.select import choose_device, choose_dtype, free_bytes
from pgcli.engine.memory import LARGE_PARAMETERS
from pgcli.errors import NoUsableDevice, UsageError
from pgcli.model.cpu.processor import has_bfloat16
from pgcli.records import Item
from pgcli.text import byte_count
from pgcli.verify import reference
from pgcli.verify.cases import Case, PaliGemmaCase, TowersCase
from pgcli.verify.compare import (
    Outputs,
    PixelComparison,
    PromptComparison,
    TensorComparison,
    TokenComparison,
    compare_pixels,
    compare_tensors,
    compare_tokens,
)
from pgcli.verify.reference import readable_images

ComparedStages = tuple[TensorComparison | TokenComparison, ...]
#: Shows the current step while it is entered.
Waiting = Callable[[str], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The stages of one dtype in their order, and each program's time."""

    dtype: str
    stages: ComparedStages
    our_seconds: float
    their_seconds: float

    @property
    def first_difference(self) -> str | None:
        """The first stage that differs, or None."""
        return next((stage.stage for stage in self.stages if not stage.same), None)


@dataclass(frozen=True, slots=True)
class Proof:
    """All comparisons with the `program`, named with its version; `skipped` has reasons.

    `rows` counts images and prompts, None if no text is generated. `texts` compares the tokens of
    prompts or texts, None without a text tower; `levels` compares the pixels, for information.
    """

    device: str
    program: str
    images: int
    rows: int | None
    texts: PromptComparison | None
    levels: PixelComparison | None
    comparisons: tuple[Comparison, ...]
    skipped: tuple[str, ...]

    @property
    def same(self) -> bool:
        has_same_tokens = self.texts is None or self.texts.same is not False
        return has_same_tokens and not any(c.first_difference for c in self.comparisons)

    @property
    def verdict(self) -> str:
        """The result in a sentence."""
        if self.texts is not None and self.texts.same is False:
            return f"different: {self.texts.first!r} has different tokens in {self.program}"
        differing = [
            f"{c.first_difference} differ in {c.dtype}"
            for c in self.comparisons
            if c.first_difference
        ]
        if differing:
            return f"different: {', '.join(differing)}"
        stages = [stage for comparison in self.comparisons for stage in comparison.stages]
        tokens = sum(stage.agreeing for stage in stages if isinstance(stage, TokenComparison))
        *names, last = [stage.stage for stage in self.comparisons[0].stages]
        last = f"{tokens} {last}" if tokens else last
        names_text = f"{', '.join(names)} and {last}" if names else last
        # float16 is compared with the reference in float32
        dtypes = " and ".join(
            "float32 (pgcli in float16)" if c.dtype == "float16" else c.dtype
            for c in self.comparisons
        )
        return f"same: {names_text} match {self.program} in {dtypes}"


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
    reference.import_transformers()
    description, read_images = read_description(folder), partial(readable_images, items)
    case: Case
    if description.kind == "multi_vector":
        raise UsageError(
            f"{checkpoint.name} is ColPali, which verify does not compare",
            hint="name a model of another family; this project's tests compare ColPali's vectors",
        )
    if description.kind in GENERATING:
        case = PaliGemmaCase(folder, torch_device, read_images)
    else:
        case = TowersCase(folder, torch_device, read_images, description)
    dtypes, skipped = choose_dtypes(dtype, torch_device, case, total_bytes(folder))
    with reference.quiet_transformers():
        comparisons = tuple(compare_in_dtype(case, dtype, waiting) for dtype in dtypes)
        texts = case.compare_texts()
        levels = compare_pixels(folder, case.images, case.preprocessing)
    return Proof(
        device=str(torch_device),
        program=f"transformers {version('transformers')}",
        images=len(case.images),
        rows=case.rows,
        texts=texts,
        levels=levels,
        comparisons=comparisons,
        skipped=tuple(skipped),
    )


def choose_dtypes(
    requested: str, device: torch.device, case: Case, stored_bytes: int
) -> tuple[list[torch.dtype], list[str]]:
    """The dtypes to compare in, and the reasons for those that are skipped."""
    free, chosen, skipped = free_bytes(device), list[torch.dtype](), list[str]()
    candidates = [torch.float32, torch.bfloat16]
    if requested == "float16" and not case.float16_problem:
        candidates = [torch.float16]  # on any device, since nothing is generated
    elif requested != "auto":
        candidates = [choose_dtype(requested, device, stored_bytes, case.float16_problem)]
    for dtype in candidates:
        name = str(dtype).removeprefix("torch.")
        # float16 is compared with float32
        needed = case.needed_memory(4 if dtype == torch.float16 else dtype.itemsize)
        is_slow = dtype == torch.bfloat16 and device.type == "cpu" and not has_bfloat16()
        if needed > free:
            skipped.append(
                f"{name}: needs {byte_count(needed)}, but {device} has {byte_count(free)} free"
            )
        elif requested == "auto" and is_slow and case.parameters > LARGE_PARAMETERS:
            skipped.append(f"{name}: slow on this processor; --dtype {name} includes it")
        else:
            chosen.append(dtype)
    if not chosen:
        raise NoUsableDevice(
            f"too little memory to compare in {skipped[-1]}",
            hint="close other programs, or use a larger machine",
        )
    return chosen, skipped


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
