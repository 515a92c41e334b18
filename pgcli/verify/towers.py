"""Embeddings and logits of two towers and classifiers in both programs.

pgcli computes them in one batch, transformers image by image.

B images · C channels · R resolution · N texts · T tokens · E embedding
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from pgcli.checkpoints.model_description import ModelDescription, image_preprocessing
from pgcli.checkpoints.weights import count_parameters
from pgcli.model.cpu.optimize import optimize_encoders_for_cpu
from pgcli.model.siglip import ImageClassifier
from pgcli.model.two_towers import TwoTowers
from pgcli.towers.loader import encoder_config, read_model, text_processor
from pgcli.towers.texts import TextProcessor
from pgcli.verify import reference
from pgcli.verify.case import Case, Outputs, ReadImages
from pgcli.verify.preprocessing import PromptComparison, compare_prompts

#: Texts of different lengths; the last is truncated.
TEXTS = (
    "a red star",
    "A photo of two dogs, a cat & a polar_bear!",
    "three blue circles to the left of a small yellow square, seen from above",
    "a text that has more tokens than any text tower has positions for " * 12,
)


@dataclass(frozen=True, slots=True)
class TowerInputs:
    """Normalized pixels in float32, and the tokens of texts, if there is a text tower."""

    pixels_BCRR: Tensor
    token_NT: Tensor | None


class TowersCase(Case):
    """Both programs on two towers or a classifier.

    Raises UsageError without transformers, NoInputError and InvalidCheckpoint.
    """

    bound = 1e-5  # for values up to 1 in float32

    def __init__(
        self,
        folder: Path,
        device: torch.device,
        read_images: ReadImages,
        description: ModelDescription,
    ):
        preprocessing = image_preprocessing(folder, description)
        resolution = description.vision.resolution
        super().__init__(folder, device, preprocessing, resolution, read_images)
        self.description, self.texts = description, text_processor(folder, description)
        self.parameters = count_parameters(encoder_config(description))
        token_NT = None if self.texts is None else self.texts(TEXTS)
        self.inputs = TowerInputs(self.pixels(len(self.images)), token_NT)

    def needed_memory(self, itemsize: int) -> int:
        return self.parameters * itemsize

    def ours(self, dtype: torch.dtype) -> Outputs:
        model = read_model(self.folder, self.description, dtype=dtype, device=self.device)
        optimize_encoders_for_cpu(model)
        return our_outputs(model, self.inputs)

    def load(self, dtype: torch.dtype) -> Any:
        is_classifier = self.description.kind == "classifier"
        name = "AutoModelForImageClassification" if is_classifier else "AutoModel"
        return reference.load_reference(self.folder, dtype, self.device, name)

    def expected(self, model: Any) -> Outputs:
        return towers_outputs(model, self.inputs)

    def eager(self, model: Any) -> Outputs | None:
        if not hasattr(model, "set_attn_implementation"):
            return None
        model.set_attn_implementation("eager")
        return towers_outputs(model, self.inputs)

    def compare_texts(self) -> PromptComparison | None:
        return None if self.texts is None else compare_texts(self.folder, self.texts)


@torch.inference_mode()
def our_outputs(model: TwoTowers | ImageClassifier, inputs: TowerInputs) -> Outputs:
    """The embeddings of images and texts and their logits, or a classifier's logits."""
    weight = model.vision.post_layernorm.weight
    pixels_BCRR = inputs.pixels_BCRR.to(weight.device, weight.dtype)
    if isinstance(model, ImageClassifier):
        return on_cpu({"classifier logits": model(pixels_BCRR)})
    image_BE = model.encode_images(pixels_BCRR)
    if inputs.token_NT is None:
        return on_cpu({"image embeddings": image_BE})
    text_NE = model.encode_texts(inputs.token_NT.to(weight.device))
    logits_BN = model.logits(image_BE @ text_NE.T)
    outputs = {"image embeddings": image_BE, "text embeddings": text_NE, "logits": logits_BN}
    # logits of cosines 0 and 1; between them scale and bias cancel, but not their rounding
    bias, largest = model.logits(image_BE.new_tensor([0, 1])).tolist()
    return replace(on_cpu(outputs), terms={"logits": largest - bias + abs(bias)})


@torch.inference_mode()
def towers_outputs(model: Any, inputs: TowerInputs) -> Outputs:
    """The reference's outputs, one image at a time."""
    weight = next(model.parameters())
    texts = None if inputs.token_NT is None else inputs.token_NT.to(weight.device)
    rows = [
        towers_row(model, pixels_1CRR.to(weight.device, weight.dtype), texts)
        for pixels_1CRR in inputs.pixels_BCRR[:, None]
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


def compare_texts(folder: Path, texts: TextProcessor) -> PromptComparison:
    """Compare the tokens of each text."""
    cleaned = [*TEXTS]
    if not texts(TEXTS, raw=True).equal(texts(TEXTS)):  # if equal, the tokenizer cleans texts
        cleaned = [texts.format.clean(text) for text in TEXTS]
    expected = partial(reference.text_ids, folder, cleaned, texts.format.length)
    return compare_prompts(TEXTS, texts(TEXTS).tolist(), expected)
