"""Embeddings and logits of both programs: this code in one batch, the reference image by image.

B images · C channels · R resolution · T tokens · N texts · E embedding
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from pgcli.checkpoints.model_description import ModelDescription
from pgcli.errors import Difference
from pgcli.model.classifier import ImageClassifier
from pgcli.model.two_towers import TwoTowers
from pgcli.printable import first_line
from pgcli.proof import reference

Outputs = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class TowerInputs:
    """Normalized pixels in float32, and the tokens of texts, if there is a text tower."""

    pixels_BCRR: Tensor
    token_NT: Tensor | None


@torch.inference_mode()
def our_outputs(model: TwoTowers | ImageClassifier, inputs: TowerInputs) -> Outputs:
    """The embeddings of images and texts and their logits, or a classifier's logits."""
    weight = model.vision.post_layernorm.weight
    pixels_BCRR = inputs.pixels_BCRR.to(weight.device, weight.dtype)
    if isinstance(model, ImageClassifier):
        return {"classifier logits": _on_cpu(model(pixels_BCRR))}
    image_BE = model.encode_images(pixels_BCRR)
    if inputs.token_NT is None:
        return {"image embeddings": _on_cpu(image_BE)}
    text_NE = model.encode_texts(inputs.token_NT.to(weight.device))
    return {
        "image embeddings": _on_cpu(image_BE),
        "text embeddings": _on_cpu(text_NE),
        "logits": _on_cpu(model.logits(image_BE @ text_NE.T)),
    }


def load_reference(
    folder: Path, description: ModelDescription, dtype: torch.dtype, device: torch.device
) -> Any:
    if description.open_clip is None:
        is_classifier = description.kind == "classifier"
        name = "AutoModelForImageClassification" if is_classifier else "AutoModel"
        return reference.load_reference(folder, dtype, device, name)
    import open_clip

    try:
        model = open_clip.create_model(f"local-dir:{folder}", device=device)
    except (OSError, ValueError, RuntimeError, LookupError, TypeError) as error:
        reason = first_line(error)
        raise Difference(
            f"different: open_clip does not read this checkpoint: {reason}",
            hint="this code does; with an older open_clip, try a newer one",
        ) from error
    return model.to(dtype).eval().requires_grad_(False)


@torch.inference_mode()
def reference_outputs(model: Any, inputs: TowerInputs) -> Outputs:
    """The reference's outputs, one image at a time."""
    weight = next(model.parameters())
    texts = None if inputs.token_NT is None else inputs.token_NT.to(weight.device)
    rows = [
        _reference_row(model, pixels_1CRR.to(weight.device, weight.dtype), texts)
        for pixels_1CRR in inputs.pixels_BCRR[:, None]
    ]
    outputs = {name: torch.cat([row[name] for row in rows]) for name in rows[0]}
    if texts is not None:  # all rows have the same
        outputs["text embeddings"] = rows[0]["text embeddings"]
    return {name: _on_cpu(output) for name, output in outputs.items()}


def _reference_row(model: Any, pixels_1CRR: Tensor, texts: Tensor | None) -> Outputs:
    if texts is None:
        out = model(pixels_1CRR)
        if "logits" in out:
            return {"classifier logits": out.logits}
        pooled: Tensor = out.pooler_output
        return {"image embeddings": F.normalize(pooled.float(), dim=-1)}
    if not hasattr(model, "encode_image"):
        out = model(input_ids=texts, pixel_values=pixels_1CRR)
        return {
            "image embeddings": out.image_embeds,
            "text embeddings": out.text_embeds,
            "logits": out.logits_per_image,
        }
    image_1E = model.encode_image(pixels_1CRR, normalize=True)
    text_NE = model.encode_text(texts, normalize=True)
    return {
        "image embeddings": image_1E,
        "text embeddings": text_NE,
        "logits": model.get_logits(pixels_1CRR, texts)[0],
    }


def _on_cpu(tensor: Tensor) -> Tensor:
    return tensor.float().cpu()
