"""What transformers makes of the inputs: one row at a time, so that nothing is padded.

transformers is imported when it is needed, and by no run that answers.

B rows · P patches · S slots so far · L steps of an answer · D width · V vocabulary
"""

from __future__ import annotations

import gc
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from pgcli.errors import Difference, UsageError
from pgcli.proof.inputs import Inputs, Outputs

#: Nothing is fetched, and no code of the checkpoint is run: unasked, transformers would ask.
SAFELY = {"local_files_only": True, "trust_remote_code": False}


def imported() -> ModuleType:
    """transformers; UsageError with the command that installs it where it is missing."""
    try:
        import transformers
    except ImportError as missing:
        raise UsageError(
            f"this command compares with transformers, which cannot be imported: {missing}",
            hint="python -m pip install 'transformers>=5.5'",
        ) from missing
    module: ModuleType = transformers
    return module


@contextmanager
def silence() -> Iterator[None]:
    """Keep transformers' progress bars and advice off the terminal while the block lasts."""
    told = imported().utils.logging
    verbosity, bars = told.get_verbosity(), told.is_progress_bar_enabled()
    disabled = logging.root.manager.disable
    told.set_verbosity_error()
    told.disable_progress_bar()
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
        told.set_verbosity(verbosity)
        if bars:
            told.enable_progress_bar()


def load(folder: Path, dtype: torch.dtype, device: torch.device) -> Any:
    """transformers' model, with the attention that it takes by itself: sdpa where it can.

    Raises Difference where it does not read what this code reads.
    """
    try:
        model, info = imported().PaliGemmaForConditionalGeneration.from_pretrained(
            folder, dtype=dtype, use_safetensors=True, output_loading_info=True, **SAFELY
        )
    except (OSError, ValueError, RuntimeError, LookupError, TypeError, AttributeError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise Difference(
            f"different: transformers does not read this checkpoint: {reason}",
            hint="this code does; with an older transformers, try a newer one",
        ) from error
    if missing := sorted(map(str, info["missing_keys"])):  # it draws them at random, and goes on
        raise Difference(
            f"different: transformers does not find {missing[0]} in the checkpoint's files",
            hint=f"this code does; of {len(missing)} such weights this is the first",
        )
    return model.to(device).eval().requires_grad_(False)


def release() -> None:
    """Give the memory of models that are gone back, before the next is loaded."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def another_way(model: Any, inputs: Inputs) -> Outputs:
    """The same by transformers' eager attention: what differs is noise, and no fault of either.

    Gemma 2's decoder has no other way there. What it reads of the pictures is rounded once more
    instead, up or down, which is the least that another order of sums would do.
    """
    has_one_way = model.config.text_config._attn_implementation == "eager"
    model.set_attn_implementation("eager")
    if not has_one_way:
        return outputs(model, inputs)
    return outputs(model, inputs, nudged=True)


@torch.inference_mode()
def outputs(model: Any, inputs: Inputs, *, nudged: bool = False) -> Outputs:
    """The same stages as ours, and the logits before every token."""
    rows = [_row(model, inputs, row, nudged) for row in range(len(inputs.ids))]
    return Outputs(
        features_BPD=torch.stack([features for features, _, _ in rows]),
        logits_BV=torch.stack([steps_LV[0] for _, _, steps_LV in rows]),
        tokens=tuple(tokens for _, tokens, _ in rows),
        steps=tuple(steps_LV for _, _, steps_LV in rows),
    )


def _row(
    model: Any, inputs: Inputs, row: int, nudged: bool
) -> tuple[Tensor, tuple[int, ...], Tensor]:
    """A row's features (P, D), tokens, and the logits (L, V) before each of them."""
    weight = model.lm_head.weight
    pixels_1CRR = inputs.pixels_BCRR[row : row + 1].to(weight.device, weight.dtype)
    seen = model.model.vision_tower(pixels_1CRR).last_hidden_state
    features_1PD = model.model.multi_modal_projector(seen)
    image = [inputs.limits.image_token] * features_1PD.shape[1]
    token_1S = torch.tensor([[*image, *inputs.ids[row]]], device=weight.device)
    model.generation_config = _settings(inputs, weight.shape[0])  # not the checkpoint's own
    with _nudging(model.model.multi_modal_projector) if nudged else nullcontext():
        told = model.generate(
            input_ids=token_1S,
            attention_mask=torch.ones_like(token_1S),
            # without them transformers takes the prompt for an answer, and reads it causally
            token_type_ids=torch.zeros_like(token_1S),
            pixel_values=pixels_1CRR,
        )
    logits = torch.cat(told.logits)[:, : inputs.limits.vocabulary]
    tokens = tuple(told.sequences[0, token_1S.shape[1] :].tolist())
    return features_1PD[0].float().cpu(), tokens, logits.float().cpu()


@contextmanager
def _nudging(module: torch.nn.Module) -> Iterator[None]:
    """Have each number that the module puts out be its neighbour, above or below, by turns."""

    def nudge(module: Any, given: Any, out: Tensor) -> Tensor:
        ends = torch.tensor([torch.inf, -torch.inf], dtype=out.dtype, device=out.device)
        by_turns = ends[torch.arange(out.numel(), device=out.device) % 2].view(out.shape)
        return torch.nextafter(out, by_turns)

    hook = module.register_forward_hook(nudge)
    try:
        yield
    finally:
        hook.remove()


def _settings(inputs: Inputs, vocab_size: int) -> Any:
    limits = inputs.limits
    return imported().GenerationConfig(
        do_sample=False,
        max_new_tokens=limits.max_new_tokens,
        eos_token_id=sorted(limits.stop_tokens),
        pad_token_id=0,
        suppress_tokens=[limits.image_token, *range(limits.vocabulary, vocab_size)],
        output_logits=True,
        return_dict_in_generate=True,
    )


def prompt_ids(folder: Path, prompts: tuple[str, ...]) -> list[list[int]]:
    """Each prompt's ids, from the first token to the newline, by transformers' own tokenizer."""
    tokenizer = imported().AutoTokenizer.from_pretrained(folder, **SAFELY)
    return [tokenizer(f"<bos>{prompt}\n", add_special_tokens=False).input_ids for prompt in prompts]


def levels(folder: Path, image: Image.Image) -> Tensor:
    """A picture (1, C, R, R) as transformers' own processor prepares it."""
    processor = imported().AutoImageProcessor.from_pretrained(folder, **SAFELY)
    pixels: Tensor = processor(image, return_tensors="pt")["pixel_values"]
    return pixels
