"""Answers one prompt about one image, explains the answer, and makes the page of the explanation.

The engine answers as always. Then one pass over image, prompt and answer, without a cache,
recomputes what each token attended to, with the same result as the engine's cached steps.

B rows (always one) · P patches · T text tokens · L tokens of the answer · S slots ·
D width · N heads · V vocabulary
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from pgcli.engine.engine import InferenceEngine
from pgcli.engine.sequence import Sequence as Generated
from pgcli.errors import NoUsableDevice, UsageError
from pgcli.model.gemma import GemmaDecoderLayer, RotaryEmbedding
from pgcli.model.siglip import SiglipEncoderLayer, normalize_pixels
from pgcli.records import Answer, DecodedImage
from pgcli.results.pages import clean_line, render_page
from pgcli.tasks import Question
from pgcli.training.answers import AnswerTokens, TokenizedExample

MAX_LAYERS = 8  # explained by default, to keep the page small
CANDIDATES = 5
VISION, DECODER = "vision tower and projector", "decoder"
PATCH, SLOT = "row, patch, value", "row, slot, value"  # the axes of most tensors
ONE = 2**16 - 1  # the script divides the two-byte weights by this


class TensorShape(NamedTuple):
    """A tensor between pixels and tokens, and the meaning of its axes."""

    name: str
    axes: str
    shape: tuple[int, ...]
    dtype: str


Shapes = dict[str, Counter[TensorShape]]


@dataclass(frozen=True, slots=True)
class TokenExplanation:
    """A generated token: its probability, the other likely tokens, and its attention.

    `attention` has the weights (layers, N, S) of each explained layer and each head over image,
    prompt and earlier tokens; they sum to 1.
    """

    text: str
    probability: float
    candidates: tuple[tuple[str, float], ...]
    attention: Tensor


@dataclass(frozen=True, slots=True)
class Explanation:
    """An answer, its tokens, the explained layers (from 0) and the tensors of both parts.

    `vision_attention` says for `vision_layers` and each head of the vision tower how much all
    patches together attend to each patch (layers, N, P), in shares that sum to 1. `shapes` counts
    the occurrences of each tensor. `difference` is the largest difference between the tokens'
    probabilities in the engine and in the explaining pass.
    """

    answer: Answer
    prompt_tokens: tuple[str, ...]
    tokens: tuple[TokenExplanation, ...]
    layers: tuple[int, ...]
    depth: int
    vision_layers: tuple[int, ...]
    vision_attention: Tensor
    grid: int
    shapes: Shapes
    difference: float


def explain(
    engine: InferenceEngine,
    image: DecodedImage,
    question: Question,
    layers: Sequence[int] | None = None,
) -> Explanation:
    """The explanation of the engine's answer to the image's one prompt.

    Explains the given `layers` of the decoder, by default an even sample that includes the last.
    Raises UsageError for an unreadable image, a prompt that is too long, and a layer that the
    model does not have.
    """
    if image.fault is not None:
        raise UsageError(f"{image.item.image}: {image.fault.message}", hint="name a readable image")
    config, tokenizer = engine.model.config, engine.tokenizer
    chosen = choose_layers(layers, config.decoder.depth)
    finished: list[Generated] = []
    ((_, answer),) = engine.ask([(0, image)], question, on_finish=finished.append)
    if answer.error == "oom":
        raise NoUsableDevice(f"{answer.error_message}", hint="try --device cpu")
    if answer.error is not None:
        raise UsageError(f"{answer.error_message}", hint="shorten the prompt")
    (sequence,) = finished
    shapes: Shapes = {VISION: Counter(), DECODER: Counter()}
    vision_layers = choose_layers(None, config.vision.depth)
    patch_BPD, vision_NP = image_attention(engine, image, vision_layers, shapes[VISION])
    weights_NLS, probability_LV = answer_attention(
        engine, patch_BPD, sequence, chosen, shapes[DECODER]
    )
    prefix = config.image_tokens + len(sequence.prompt_ids)
    tokens, difference = [], 0.0
    for number, (token, logprob) in enumerate(zip(sequence.tokens, sequence.logprobs, strict=True)):
        probability_V = probability_LV[number]
        top = probability_V.topk(min(CANDIDATES, len(probability_V)))
        candidates = zip(top.indices.tolist(), top.values.tolist(), strict=True)
        probability = math.exp(logprob)
        difference = max(difference, abs(probability - probability_V[token].item()))
        tokens.append(
            TokenExplanation(
                text=tokenizer.token_text(token),
                probability=probability,
                candidates=tuple((tokenizer.token_text(id), p) for id, p in candidates),
                attention=weights_NLS[:, :, number, : prefix + number],
            )
        )
    return Explanation(
        answer=answer,
        prompt_tokens=tuple(map(tokenizer.token_text, sequence.prompt_ids)),
        tokens=tuple(tokens),
        layers=chosen,
        depth=config.decoder.depth,
        vision_layers=vision_layers,
        vision_attention=vision_NP,
        grid=config.vision.resolution // config.vision.patch_size,
        shapes=shapes,
        difference=difference,
    )


@torch.no_grad()
def image_attention(
    engine: InferenceEngine,
    image: DecodedImage,
    layers: Sequence[int],
    shapes: Counter[TensorShape],
) -> tuple[Tensor, Tensor]:
    """The image features (B, P, D) for the decoder, and for these layers and each head the average
    attention of all patches to each patch (layers, N, P), in float32 on the CPU.
    """
    model, preprocessing = engine.model, engine.preprocessing
    vision, weight = model.vision, model.projector.weight
    mean, std = (
        torch.tensor(values, device=weight.device)
        for values in (preprocessing.mean, preprocessing.std)
    )
    pixels_BRRC = torch.from_numpy(image.pixels)[None].to(weight.device)
    pixels_BCRR = normalize_pixels(pixels_BRRC, mean, std, weight.dtype)
    see(shapes, "normalized pixels", "row, channel, y, x", pixels_BCRR)
    x_BPD = vision.embeddings(pixels_BCRR)
    see(shapes, "patches with positions", PATCH, x_BPD)
    attention = []
    for index, layer in enumerate(cast(Iterable[SiglipEncoderLayer], vision.layers)):
        if index in layers:
            weight_BNPP = layer.self_attn.weights(layer.layer_norm1(x_BPD))
            see(shapes, "attention of all patches to all", "row, head, patch, patch", weight_BNPP)
            attention.append(weight_BNPP[0].mean(dim=1).cpu())
        x_BPD = layer(x_BPD)
        see(shapes, "output of a layer", PATCH, x_BPD)
    x_BPD = vision.post_layernorm(x_BPD)
    see(shapes, "image features", PATCH, x_BPD)
    patch_BPD: Tensor = model.projector(x_BPD)
    see(shapes, "image features as wide as the decoder", PATCH, patch_BPD)
    return patch_BPD, torch.stack(attention)


@torch.no_grad()
def answer_attention(
    engine: InferenceEngine,
    patch_BPD: Tensor,
    sequence: Generated,
    layers: Sequence[int],
    shapes: Counter[TensorShape],
) -> tuple[Tensor, Tensor]:
    """For these layers and each head the attention of the slots that predict the answer's tokens
    (layers, N, L, S), and their probabilities of all tokens (L, V), in float32 on the CPU.
    """
    decoder, length = engine.model.decoder, len(sequence.tokens)
    tokens = AnswerTokens.of(
        [TokenizedExample(sequence.prompt_ids, sequence.tokens)],
        patches=patch_BPD.shape[1],
        window=decoder.config.sliding_window,
        device=patch_BPD.device,
    )
    text_BTD = decoder.embed(tokens.token_BT)
    see(shapes, "embeddings of prompt and answer", "row, token, value", text_BTD)
    x_BSD = torch.cat([patch_BPD, text_BTD], dim=1)
    see(shapes, "image, prompt and answer", SLOT, x_BSD)
    see(shapes, "positions", "row, slot", tokens.position_BS)
    rotary = RotaryEmbedding.of(tokens.position_BS, decoder.config, x_BSD.dtype)
    attention = []
    for index, layer in enumerate(cast(Iterable[GemmaDecoderLayer], decoder.layers)):
        mask = tokens.masks.sliding if decoder.config.is_sliding(index) else tokens.masks.full
        normed_BSD = layer.input_layernorm(x_BSD)
        query_BSNH, key_BSKH, value_BSKH = layer.self_attn.project(normed_BSD, rotary, False)
        see(shapes, "queries", "row, slot, head, value", query_BSNH)
        see(shapes, "keys", "row, slot, head, value", key_BSKH)
        see(shapes, "values", "row, slot, head, value", value_BSKH)
        if index in layers:
            weight_BNSS = layer.self_attn.weights(normed_BSD, rotary, mask)
            see(shapes, "attention of all slots to all", "row, head, slot, slot", weight_BNSS)
            attention.append(weight_BNSS[0, :, -length:].to("cpu", copy=True))
        x_BSD = layer(x_BSD, rotary, mask, None)
        see(shapes, "output of a layer", SLOT, x_BSD)
    hidden_BLD = decoder.norm(x_BSD[:, -length:])
    see(shapes, "slots of the answer after the last norm", SLOT, hidden_BLD)
    logits_LV = decoder.logits(hidden_BLD)[0, :, : engine.tokenizer.size]
    see(shapes, "logits of the answer's tokens", "token of the answer, token", logits_LV)
    return torch.stack(attention), logits_LV.float().softmax(-1).cpu()


def see(shapes: Counter[TensorShape], name: str, axes: str, tensor: Tensor) -> None:
    """Count the tensor by its name and shape."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    shapes[TensorShape(name, axes, tuple(tensor.shape), dtype)] += 1


def choose_layers(layers: Sequence[int] | None, depth: int) -> tuple[int, ...]:
    """The layers to explain, in ascending order; by default an even sample.

    Raises UsageError for a layer that does not exist.
    """
    if layers is None:
        count = min(depth, MAX_LAYERS)
        return tuple(depth * (number + 1) // count - 1 for number in range(count))
    for layer in layers:
        if layer >= depth:
            raise UsageError(
                f"there is no layer {layer + 1}: the decoder has {depth}",
                hint=f"name layers from 1 to {depth}",
            )
    return tuple(sorted(set(layers or range(depth))))


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
