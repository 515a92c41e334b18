"""Assembles the page of an explanation: markup, style, script, and the values as inert JSON."""

from __future__ import annotations

from base64 import b64encode
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from torch import Tensor

from pgcli.explain.explain import Explanation, TensorShape, TokenExplanation
from pgcli.printable import encodable, printable
from pgcli.records import DecodedImage
from pgcli.results.gallery.page import inert, policy

ONE = 2**16 - 1  # the script divides the two-byte weights by this


def render_explanation(explanation: Explanation, image: DecodedImage, thumbnail: bytes) -> str:
    """The page, with a small copy of the image as a WebP file.

    No foreign value is markup: all are JSON that cannot contain a tag. The content security policy
    allows this script alone, by its digest, and no requests.
    """
    style, script = asset("page.css"), asset("page.js")
    script = f'"use strict";\n(() => {{\n{script}\n}})();\n'
    data = page_data(explanation, image) | {
        "image": f"data:image/webp;base64,{b64encode(thumbnail).decode('ascii')}"
    }
    return Template(asset("page.html")).substitute(
        policy=escape(policy(style, script, has_assets=False)),
        title=escape(page_text(f"{explanation.answer.id}: {explanation.answer.answer}")),
        style=style,
        data=inert(data),
        script=script,
    )


def page_data(explanation: Explanation, image: DecodedImage) -> dict[str, Any]:
    """The values of the page's script."""
    answer = explanation.answer
    return {
        "id": page_text(answer.id),
        "model": page_text(answer.model),
        "width": image.width,
        "height": image.height,
        "grid": explanation.grid,
        "prompt": page_text(answer.prompt),
        "answer": page_text(answer.answer or ""),
        "promptTokens": [*map(page_text, explanation.prompt_tokens)],
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
        "text": page_text(token.text),
        "probability": round(token.probability, 6),
        "candidates": [(page_text(candidate), round(p, 6)) for candidate, p in token.candidates],
        "attention": packed(token.attention),
    }


def packed(weights: Tensor) -> str:
    """Weights from 0 to 1 as little-endian two-byte integers, in base64."""
    return b64encode((weights * ONE).round().numpy().astype("<u2").tobytes()).decode("ascii")


def tensor_data(entry: tuple[TensorShape, int]) -> list[Any]:
    (name, axes, shape, dtype), count = entry
    return [name, axes, list(shape), dtype, count]


def page_text(value: str) -> str:
    """A foreign text without control characters, in valid UTF-8."""
    return printable(encodable(value))


def asset(name: str) -> str:
    """A file from the page's folder in the package."""
    return files("pgcli.explain").joinpath("page", name).read_text(encoding="utf-8")
