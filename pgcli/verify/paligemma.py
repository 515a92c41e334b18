"""PaliGemma's outputs in both programs: one batch in pgcli, row by row in transformers.

pgcli pads shorter prompts; transformers needs no padding.

B rows · C channels · R resolution · P patches · T prompt tokens · L tokens of an answer · D width ·
V vocabulary
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pgcli.checkpoints import weights
from pgcli.checkpoints.config import read_config, settings_not_followed
from pgcli.checkpoints.preprocessing import read_preprocessing
from pgcli.engine.memory import LONG_PROMPT, NEW_TOKENS, needed_bytes, parameters
from pgcli.engine.model_runner import generate as generate_here
from pgcli.engine.sampler import OutputVocabulary
from pgcli.engine.sequence import Sequence as EngineSequence
from pgcli.engine.tokenizer import Tokenizer, left_pad
from pgcli.model.config import PaliGemmaConfig
from pgcli.model.float16 import float16_problem
from pgcli.model.optimize import optimize_part
from pgcli.model.paligemma import PaliGemma
from pgcli.verify import reference
from pgcli.verify.case import Case, Outputs, ReadImages
from pgcli.verify.compare import EXACT
from pgcli.verify.preprocessing import PromptComparison, compare_prompts

#: Prompts of every task and of different lengths: in one batch, three of four rows have padding.
PROMPTS = (
    "caption en",
    "ocr",
    "detect circle ; square",
    "answer en which shape is in the middle of the image, and which colour does it have?",
)
MAX_NEW_TOKENS = 16
FEATURES, LOGITS = "vision features", "prefill logits"


@dataclass(frozen=True, slots=True)
class Inputs:
    """Rows of an image and a prompt: normalized pixels in float32, and prompt ids."""

    pixels_BCRR: Tensor
    prompts: tuple[str, ...]
    ids: tuple[tuple[int, ...], ...]
    vocabulary: OutputVocabulary


class PaliGemmaCase(Case):
    """Both programs on a PaliGemma checkpoint.

    Raises UsageError without transformers, NoInputError and InvalidCheckpoint.
    """

    bound = EXACT

    def __init__(self, folder: Path, device: torch.device, read_images: ReadImages):
        config, self.tokenizer = read_config(folder), Tokenizer.from_folder(folder)
        resolution = config.vision.resolution
        super().__init__(
            folder, device, read_preprocessing(folder, resolution), resolution, read_images
        )
        self.config, self.parameters = config, parameters(config)
        self.rows = max(len(self.images), len(PROMPTS))
        self.inputs = make_inputs(self.pixels(self.rows), self.tokenizer, config)
        self.image_token = config.image_token_id
        self.not_followed = settings_not_followed(folder, never_generated={config.image_token_id})
        self.float16_problem = float16_problem(config)

    def needed_memory(self, itemsize: int) -> int:
        """The bytes for pgcli's batch, or for a row in transformers with all attention scores."""
        config, device = self.config, self.device.type
        decoder, vision = config.decoder, config.vision
        slots = config.image_tokens + LONG_PROMPT + NEW_TOKENS
        scores = 12 * max(decoder.num_heads * slots**2, vision.num_heads * vision.num_patches**2)
        there = needed_bytes(config, itemsize, 1, device=device) + scores
        return max(needed_bytes(config, itemsize, len(self.inputs.ids), device=device), there)

    def ours(self, dtype: torch.dtype) -> Outputs:
        model = weights.load_paligemma(
            self.folder, self.config, dtype=dtype, device=self.device, finish=optimize_part
        )
        return engine_outputs(model, self.inputs)

    def load(self, dtype: torch.dtype) -> Any:
        return reference.load_reference(self.folder, dtype, self.device)

    def expected(self, model: Any) -> Outputs:
        return reference_outputs(model, self.inputs)

    def eager(self, model: Any) -> Outputs:
        """The outputs with transformers' eager attention, whose differences are rounding noise.

        Gemma 2's decoder always uses eager attention. Its image features are perturbed by one
        rounding step instead, the smallest effect of another order of summation.
        """
        is_eager_only = model.config.text_config._attn_implementation == "eager"
        model.set_attn_implementation("eager")
        return reference_outputs(model, self.inputs, perturbed=is_eager_only)

    def compare_texts(self) -> PromptComparison:
        ids = [*map(self.tokenizer.encode_prompt, PROMPTS)]
        return compare_prompts(PROMPTS, ids, lambda: reference.prompt_ids(self.folder, PROMPTS))


def make_inputs(pixels_BCRR: Tensor, tokenizer: Tokenizer, config: PaliGemmaConfig) -> Inputs:
    """A row for each image, with the prompts in turn."""
    prompts = tuple(PROMPTS[row % len(PROMPTS)] for row in range(len(pixels_BCRR)))
    return Inputs(
        pixels_BCRR,
        prompts,
        ids=tuple(tuple(tokenizer.encode_prompt(prompt)) for prompt in prompts),
        vocabulary=OutputVocabulary(tokenizer.size, config.image_token_id, config.stop_tokens),
    )


@torch.inference_mode()
def engine_outputs(model: PaliGemma, inputs: Inputs) -> Outputs:
    """Image features, prefill logits within the vocabulary, and greedy tokens."""
    weight = model.projector.weight
    patch_BPD = model.encode(inputs.pixels_BCRR.to(weight.device, weight.dtype))
    token_BT, is_real_BT = left_pad(inputs.ids)
    if is_real_BT is not None:
        is_real_BT = is_real_BT.to(weight.device)
    cache = model.kv_cache(len(inputs.ids))
    logits_BV = model.prefill(patch_BPD, token_BT.to(weight.device), is_real_BT, cache)
    sequences = [
        EngineSequence(row, prompt, ids, MAX_NEW_TOKENS)
        for row, (prompt, ids) in enumerate(zip(inputs.prompts, inputs.ids, strict=True))
    ]
    rows = generate_here(model, patch_BPD, sequences, inputs.vocabulary)
    tensors = {
        FEATURES: (patch_BPD.float() / model.decoder.residual_scale).cpu(),
        LOGITS: logits_BV[:, : inputs.vocabulary.size].float().cpu(),
    }
    return Outputs(tensors, tuple(tuple(row.tokens) for row in rows))


@torch.inference_mode()
def reference_outputs(model: Any, inputs: Inputs, *, perturbed: bool = False) -> Outputs:
    """Image features, prefill logits, greedy tokens, and the logits before every token."""
    rows = [reference_row(model, inputs, row, perturbed) for row in range(len(inputs.ids))]
    tensors = {
        FEATURES: torch.stack([feature_PD for feature_PD, _, _ in rows]),
        LOGITS: torch.stack([steps_LV[0] for _, _, steps_LV in rows]),
    }
    tokens = tuple(tokens for _, tokens, _ in rows)
    return Outputs(tensors, tokens, steps=tuple(steps_LV for _, _, steps_LV in rows))


def reference_row(
    model: Any, inputs: Inputs, row: int, perturbed: bool
) -> tuple[Tensor, tuple[int, ...], Tensor]:
    """A row's features (P, D), tokens, and the logits (L, V) before each of them."""
    weight, vocabulary, own = model.lm_head.weight, inputs.vocabulary, model.generation_config
    pixels_1CRR = inputs.pixels_BCRR[row : row + 1].to(weight.device, weight.dtype)
    projector = model.model.multi_modal_projector
    features_1PD = projector(model.model.vision_tower(pixels_1CRR).last_hidden_state)
    with perturbed_output(projector) if perturbed else nullcontext():
        generated, start = reference.generate_greedily(
            model,
            pixels_1CRR,
            [inputs.ids[row]],
            image_token=vocabulary.image_token,
            image_slots=features_1PD.shape[1],
            max_new_tokens=MAX_NEW_TOKENS,
            eos_token_id=own.eos_token_id or sorted(vocabulary.stop_tokens),
            suppress_tokens=[
                *(own.suppress_tokens or ()),
                vocabulary.image_token,
                *range(vocabulary.size, weight.shape[0]),
            ],
            output_logits=True,
            return_dict_in_generate=True,
        )
    # a beam search has a row for each beam
    logits = torch.stack([step_BV[0] for step_BV in generated.logits])[:, : vocabulary.size]
    tokens = tuple(generated.sequences[0, start:].tolist())
    return features_1PD[0].float().cpu(), tokens, logits.float().cpu()


@contextmanager
def perturbed_output(module: torch.nn.Module) -> Iterator[None]:
    """Replace each output value by the next larger or smaller number, alternating."""

    def perturb(module: Any, inputs: Any, out: Tensor) -> Tensor:
        ends = torch.tensor([torch.inf, -torch.inf], dtype=out.dtype, device=out.device)
        directions = ends[torch.arange(out.numel(), device=out.device) % 2].view(out.shape)
        return torch.nextafter(out, directions)

    hook = module.register_forward_hook(perturb)
    try:
        yield
    finally:
        hook.remove()
