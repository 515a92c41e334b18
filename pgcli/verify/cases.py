"""A checkpoint in both programs: PaliGemma in one batch and row by row, and towers.

pgcli pads shorter prompts; transformers needs no padding, and computes image by image.

B rows · C channels · R resolution · P patches · T prompt tokens · L tokens of an answer ·
N texts · E embedding · D width · V vocabulary
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from pgcli.checkpoints import weights
from pgcli.checkpoints.config import (
    ModelDescription,
    image_preprocessing,
    read_config,
    read_description,
)
from pgcli.checkpoints.preprocessing import Preprocessing
from pgcli.checkpoints.weights import count_parameters
from pgcli.engine.memory import NEW_TOKENS, needed_bytes, parameters, prompt_slots
from pgcli.engine.model_runner import generate as generate_here
from pgcli.engine.sampler import OutputVocabulary
from pgcli.engine.sequence import Sequence as EngineSequence
from pgcli.engine.tokenizer import Tokenizer, left_pad
from pgcli.images import ImageSpec
from pgcli.model.cpu.optimize import optimize_encoders_for_cpu
from pgcli.model.optimize import float16_problem, optimize_part
from pgcli.model.paligemma import PaliGemma
from pgcli.model.siglip import ImageClassifier, TwoTowers, normalize_pixels
from pgcli.records import DecodedImage
from pgcli.towers.engine import encoder_config, read_model, text_processor
from pgcli.verify import reference
from pgcli.verify.compare import EXACT, Outputs, PromptComparison, compare_prompts

#: Decodes the images to compare with. Raises NoInputError.
ReadImages = Callable[[ImageSpec], list[DecodedImage]]
#: Prompts of every task and of different lengths: in one batch, three of four rows have padding.
PROMPTS = (
    "caption en",
    "ocr",
    "detect circle ; square",
    "answer en which shape is in the middle of the image, and which colour does it have?",
)
INSTRUCTIONS = (
    "Describe this image.",
    "What is in the middle of the image, and which colour does it have?",
    "ocr",
    "Answer in one word.\n\nIs it a photograph?",
)
MAX_NEW_TOKENS = 16
FEATURES, LOGITS = "vision features", "prefill logits"
#: Texts of different lengths; the last is truncated.
TEXTS = (
    "a red star",
    "A photo of two dogs, a cat & a polar_bear!",
    "three blue circles to the left of a small yellow square, seen from above",
    "a text that has more tokens than any text tower has positions for " * 12,
)


def normalized_pixels(
    images: Sequence[DecodedImage], preprocessing: Preprocessing, rows: int
) -> Tensor:
    """The normalized images (B, C, R, R) in float32, repeated up to this many rows."""
    pixels = [image.pixels for image in images if image.pixels is not None]
    mean, std = torch.tensor(preprocessing.mean), torch.tensor(preprocessing.std)
    stacked = torch.from_numpy(np.stack([pixels[row % len(pixels)] for row in range(rows)]))
    return normalize_pixels(stacked, mean, std, torch.float32)


@dataclass(frozen=True, slots=True)
class Inputs:
    """Rows of an image and a prompt: normalized pixels in float32, and prompt ids.

    `head` are the ids before each image.
    """

    pixels_BCRR: Tensor
    prompts: tuple[str, ...]
    ids: tuple[tuple[int, ...], ...]
    vocabulary: OutputVocabulary
    head: tuple[int, ...] = ()


class PaliGemmaCase:
    """Both programs on a checkpoint that generates text.

    Raises UsageError without transformers, NoInputError and InvalidCheckpoint.
    """

    bound = EXACT

    def __init__(self, folder: Path, device: torch.device, read_images: ReadImages):
        self.folder, self.device, config = folder, device, read_config(folder)
        self.tokenizer = Tokenizer.from_folder(folder, config.image_marks)
        self.prompts = PROMPTS if config.image_marks is None else INSTRUCTIONS
        self.preprocessing = image_preprocessing(folder, read_description(folder))
        self.images = read_images(self.preprocessing.image_spec(config.vision.resolution))
        self.config, self.parameters = config, parameters(config)
        rows = max(len(self.images), len(self.prompts))
        self.rows: int | None = rows
        prompts = tuple(self.prompts[row % len(self.prompts)] for row in range(rows))
        self.inputs = Inputs(
            normalized_pixels(self.images, self.preprocessing, rows),
            prompts,
            ids=tuple(tuple(self.tokenizer.encode_prompt(prompt)) for prompt in prompts),
            vocabulary=OutputVocabulary(
                self.tokenizer.size, config.image_token_id, config.stop_tokens
            ),
            head=self.tokenizer.encode_head(),
        )
        self.image_token = config.image_token_id
        self.float16_problem = float16_problem(config)

    def needed_memory(self, itemsize: int) -> int:
        """The bytes for pgcli's batch, or for a row in transformers with all attention scores."""
        config, device = self.config, self.device.type
        decoder, vision = config.decoder, config.vision
        slots = prompt_slots(config) + NEW_TOKENS
        scores = 12 * max(decoder.num_heads * slots**2, vision.num_heads * vision.num_patches**2)
        there = needed_bytes(config, itemsize, 1, device=device) + scores
        return max(needed_bytes(config, itemsize, len(self.inputs.ids), device=device), there)

    def ours(self, dtype: torch.dtype) -> Outputs:
        model = weights.load_paligemma(
            self.folder, self.config, dtype=dtype, device=self.device, finish=optimize_part
        )
        return engine_outputs(model, self.inputs)

    def load(self, dtype: torch.dtype) -> Any:
        name = reference.class_name(self.config)
        return reference.load_reference(self.folder, dtype, self.device, name)

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
        folder, prompts, image = self.folder, self.prompts, self.config.image_token_id
        ids = [*map(self.tokenizer.encode_prompt, prompts)]
        if self.config.image_marks is None:
            return compare_prompts(prompts, ids, lambda: reference.prompt_ids(folder, prompts))
        head = self.inputs.head
        return compare_prompts(
            prompts,
            [[*head, image, *tail] for tail in ids],
            lambda: reference.conversation_ids(folder, prompts, image),
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
    head_H = torch.tensor(inputs.head, device=weight.device) if inputs.head else None
    logits_BV = model.prefill(
        patch_BPD, token_BT.to(weight.device), is_real_BT, cache, head_H=head_H
    )
    sequences = [
        EngineSequence(row, prompt, ids, MAX_NEW_TOKENS, head_ids=inputs.head)
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
    weight, vocabulary = model.lm_head.weight, inputs.vocabulary
    pixels_1CRR = inputs.pixels_BCRR[row : row + 1].to(weight.device, weight.dtype)
    projector = model.model.multi_modal_projector
    features_1PD = projector(model.model.vision_tower(pixels_1CRR).last_hidden_state)
    with perturbed_output(projector) if perturbed else nullcontext():
        generated, start = reference.generate_greedily(
            model,
            pixels_1CRR,
            [inputs.ids[row]],
            head=inputs.head,
            image_token=vocabulary.image_token,
            image_slots=features_1PD.shape[1],
            max_new_tokens=MAX_NEW_TOKENS,
            eos_token_id=sorted(vocabulary.stop_tokens),
            suppress_tokens=[vocabulary.image_token, *range(vocabulary.size, weight.shape[0])],
            output_logits=True,
            return_dict_in_generate=True,
        )
    logits = torch.cat(generated.logits)[:, : vocabulary.size]
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


class TowersCase:
    """Both programs on two towers or a classifier.

    Raises UsageError without transformers, NoInputError and InvalidCheckpoint.
    """

    bound = 1e-5  # for values up to 1 in float32
    rows: int | None = None
    image_token = -1  # no text is generated
    float16_problem = "only PaliGemma 1 runs in float16"

    def __init__(
        self,
        folder: Path,
        device: torch.device,
        read_images: ReadImages,
        description: ModelDescription,
    ):
        self.folder, self.device, self.description = folder, device, description
        self.preprocessing = image_preprocessing(folder, description)
        self.images = read_images(self.preprocessing.image_spec(description.vision.resolution))
        self.texts = text_processor(folder, description)
        self.parameters = count_parameters(encoder_config(description))
        self.token_NT = None if self.texts is None else self.texts(TEXTS)
        self.pixels_BCRR = normalized_pixels(self.images, self.preprocessing, len(self.images))

    def needed_memory(self, itemsize: int) -> int:
        return self.parameters * itemsize

    def ours(self, dtype: torch.dtype) -> Outputs:
        model = read_model(self.folder, self.description, dtype=dtype, device=self.device)
        optimize_encoders_for_cpu(model)
        return our_outputs(model, self.pixels_BCRR, self.token_NT)

    def load(self, dtype: torch.dtype) -> Any:
        is_classifier = self.description.kind == "classifier"
        name = "AutoModelForImageClassification" if is_classifier else "AutoModel"
        return reference.load_reference(self.folder, dtype, self.device, name)

    def expected(self, model: Any) -> Outputs:
        return towers_outputs(model, self.pixels_BCRR, self.token_NT)

    def eager(self, model: Any) -> Outputs | None:
        if not hasattr(model, "set_attn_implementation"):
            return None
        model.set_attn_implementation("eager")
        return towers_outputs(model, self.pixels_BCRR, self.token_NT)

    def compare_texts(self) -> PromptComparison | None:
        """Whether both programs make the same tokens of texts; None without a text tower."""
        texts = self.texts
        if texts is None:
            return None
        cleaned = [*TEXTS]
        if not texts(TEXTS, raw=True).equal(texts(TEXTS)):  # if equal, the tokenizer cleans texts
            cleaned = [texts.format.clean(text) for text in TEXTS]
        expected = partial(reference.text_ids, self.folder, cleaned, texts.format.length)
        return compare_prompts(TEXTS, texts(TEXTS).tolist(), expected)


#: `bound` is the largest difference of exact float32 outputs; `rows` counts images and prompts,
#: None if no text is generated; `image_token` is never part of an answer.
Case: TypeAlias = PaliGemmaCase | TowersCase


@torch.inference_mode()
def our_outputs(
    model: TwoTowers | ImageClassifier, pixels_BCRR: Tensor, token_NT: Tensor | None
) -> Outputs:
    """The embeddings of images and texts and their logits, or a classifier's logits."""
    weight = model.vision.post_layernorm.weight
    pixels_BCRR = pixels_BCRR.to(weight.device, weight.dtype)
    if isinstance(model, ImageClassifier):
        return on_cpu({"classifier logits": model(pixels_BCRR)})
    image_BE = model.encode_images(pixels_BCRR)
    if token_NT is None:
        return on_cpu({"image embeddings": image_BE})
    text_NE = model.encode_texts(token_NT.to(weight.device))
    logits_BN = model.logits(image_BE @ text_NE.T)
    outputs = {"image embeddings": image_BE, "text embeddings": text_NE, "logits": logits_BN}
    # logits of cosines 0 and 1; between them scale and bias cancel, but not their rounding
    bias, largest = model.logits(image_BE.new_tensor([0, 1])).tolist()
    return replace(on_cpu(outputs), terms={"logits": largest - bias + abs(bias)})


@torch.inference_mode()
def towers_outputs(model: Any, pixels_BCRR: Tensor, token_NT: Tensor | None) -> Outputs:
    """The reference's outputs, one image at a time."""
    weight = next(model.parameters())
    texts = None if token_NT is None else token_NT.to(weight.device)
    rows = [
        towers_row(model, pixels_1CRR.to(weight.device, weight.dtype), texts)
        for pixels_1CRR in pixels_BCRR[:, None]
    ]
    outputs = {name: torch.cat([row[name] for row in rows]) for name in rows[0]}
    if texts is not None:  # the same for all rows
        outputs["text embeddings"] = rows[0]["text embeddings"]
    return on_cpu(outputs)


def towers_row(model: Any, pixels_1CRR: Tensor, texts: Tensor | None) -> Mapping[str, Tensor]:
    if texts is None:
        out = model(pixels_1CRR)
        if "logits" in out:
            return {"classifier logits": out.logits}
        pooled: Tensor = out.pooler_output
        return {"image embeddings": F.normalize(pooled.float(), dim=-1)}
    out = model(input_ids=texts, pixel_values=pixels_1CRR)
    return {
        "image embeddings": out.image_embeds,
        "text embeddings": out.text_embeds,
        "logits": out.logits_per_image,
    }


def on_cpu(tensors: Mapping[str, Tensor]) -> Outputs:
    """The outputs of stages, in float32 on the CPU."""
    return Outputs({stage: tensor.float().cpu() for stage, tensor in tensors.items()})
