"""Makes the page of an explanation."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from torch import Tensor

from pgcli.explain.explain import Explanation, TensorShape, TokenExplanation
from pgcli.records import DecodedImage
from pgcli.results.pages import clean_line, render_page

ONE = 2**16 - 1  # the script divides the two-byte weights by this


def render_explanation(explanation: Explanation, image: DecodedImage, thumbnail: bytes) -> str:
    """The page of an explanation, with a small copy of the image as a WebP file."""
    data = page_data(explanation, image) | {
        "image": f"data:image/webp;base64,{b64encode(thumbnail).decode('ascii')}"
    }
    title = f"{explanation.answer.id}: {explanation.answer.answer}"
    return "".join(render_page("pgcli.explain", ["page"], data, title=title))


def page_data(explanation: Explanation, image: DecodedImage) -> dict[str, Any]:
    """The values of the page's script."""
    answer = explanation.answer
    return {
        "id": clean_line(answer.id),
        "model": clean_line(answer.model),
        "width": image.width,
        "height": image.height,
        "grid": explanation.grid,
        "prompt": clean_line(answer.prompt),
        "answer": clean_line(answer.answer),
        "promptTokens": [*map(clean_line, explanation.prompt_tokens)],
        "tokens": [*map(token_data, explanation.tokens)],
        "layers": [layer + 1 for layer in explanation.layers],
        "depth": explanation.depth,
        "visionLayers": [layer + 1 for layer in explanation.vision_layers],
        "visionHeads": explanation.vision_attention.shape[1],
        "visionAttention": packed(explanation.vision_attention),
        "heads": explanation.tokens[0].attention.shape[1],
        "stages": [
            {"name": name, "tensors": [*map(tensor_data, tensors.items())]}
            for name, tensors in explanation.shapes.items()
        ],
        "difference": explanation.difference,
    }


def token_data(token: TokenExplanation) -> dict[str, Any]:
    """A token's values; its attention by layer, head and slot."""
    return {
        "text": clean_line(token.text),
        "probability": round(token.probability, 6),
        "candidates": [(clean_line(candidate), round(p, 6)) for candidate, p in token.candidates],
        "attention": packed(token.attention),
    }


def packed(weights: Tensor) -> str:
    """Weights from 0 to 1 as little-endian two-byte integers, in base64."""
    return b64encode((weights * ONE).round().numpy().astype("<u2").tobytes()).decode("ascii")


def tensor_data(entry: tuple[TensorShape, int]) -> list[Any]:
    (name, axes, shape, dtype), count = entry
    return [name, axes, list(shape), dtype, count]
