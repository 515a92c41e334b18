"""Answers one prompt about one image, and explains the answer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from pgcli.engine.engine import InferenceEngine
from pgcli.engine.sequence import Sequence as Generated
from pgcli.errors import NoUsableDevice, UsageError
from pgcli.explain.recorder import VISION, PassRecorder, TensorShape
from pgcli.model.cuda.fused_gemma import plain_decoder
from pgcli.records import Answer, DecodedImage
from pgcli.tasks import Question

MAX_LAYERS = 8  # that are explained by default, so that the page stays small


@dataclass(frozen=True, slots=True)
class TokenExplanation:
    """A generated token: its probability, what else was probable, and what it attended to.

    `attention` has for each of the explained layers the weights (S,) over image, prompt and earlier
    tokens, averaged over heads; each sums to 1. They are those of the pass that generated it.
    """

    text: str
    probability: float
    candidates: tuple[tuple[str, float], ...]
    attention: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """An answer, its tokens, the explained layers (from 0) and the tensors of each stage.

    `shapes` has of each tensor how often it occurs. `difference` is the largest one between the
    model's attention outputs and those that follow from the weights shown here, as a share of the
    largest output.
    """

    answer: Answer
    prompt_tokens: tuple[str, ...]
    tokens: tuple[TokenExplanation, ...]
    layers: tuple[int, ...]
    depth: int
    grid: int
    shapes: dict[str, dict[TensorShape, int]]
    difference: float


def explain(
    engine: InferenceEngine,
    image: DecodedImage,
    question: Question,
    layers: Sequence[int] | None = None,
) -> Explanation:
    """The explanation of the engine's answer to the image's one prompt.

    `layers` are explained, or some that are evenly spread and end with the last one. Raises
    UsageError for an image that cannot be read, a prompt that is too long, and a layer that the
    model does not have.
    """
    if image.fault is not None:
        raise UsageError(f"{image.item.image}: {image.fault.message}", hint="name an image")
    config, tokenizer = engine.model.config, engine.tokenizer
    chosen = choose_layers(layers, config.decoder.depth)
    finished: list[Generated] = []
    with (
        plain_decoder(engine.model),
        PassRecorder(engine.model, vocab_size=tokenizer.size) as recorder,
    ):
        ((_, answer),) = engine.ask([(0, image)], question, on_finish=finished.append)
    if answer.error == "oom":
        raise NoUsableDevice(f"{answer.error_message}", hint="try --device cpu")
    if answer.error is not None:
        raise UsageError(f"{answer.error_message}", hint="shorten it")
    (sequence,) = finished
    tokens = tuple(explained_tokens(engine, sequence, recorder, chosen))
    return Explanation(
        answer=answer,
        prompt_tokens=tuple(map(tokenizer.token_text, sequence.prompt_ids)),
        tokens=tokens,
        layers=chosen,
        depth=config.decoder.depth,
        grid=config.vision.resolution // config.vision.patch_size,
        shapes=first_and_last_step(recorder, len(tokens)),
        difference=recorder.difference,
    )


def explained_tokens(
    engine: InferenceEngine, sequence: Generated, recorder: PassRecorder, layers: Sequence[int]
) -> Iterator[TokenExplanation]:
    """The generated tokens, each with what was recorded of the pass that generated it."""
    token_text = engine.tokenizer.token_text
    passes = zip(
        sequence.tokens,
        sequence.logprobs,
        recorder.weights,
        recorder.candidates,
        strict=False,  # on a GPU a pass more runs, whose token is dropped
    )
    slots = engine.model.config.image_tokens + len(sequence.prompt_ids)
    for number, (token, logprob, weights, candidates) in enumerate(passes):
        yield TokenExplanation(
            text=token_text(token),
            probability=math.exp(logprob),
            candidates=tuple((token_text(id), p) for id, p in candidates),
            attention=tuple(weights[layer][: slots + number] for layer in layers),
        )


def choose_layers(layers: Sequence[int] | None, depth: int) -> tuple[int, ...]:
    """The layers to explain, in ascending order; none stands for all.

    Raises UsageError for one that does not exist.
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


def first_and_last_step(recorder: PassRecorder, tokens: int) -> dict[str, dict[TensorShape, int]]:
    """The recorded stages without the decode steps between the first and the last one."""
    last = f"decode step {tokens - 1}"
    shown = {VISION, "prefill", "decode step 1", last}
    return {name: dict(found) for name, found in recorder.shapes.items() if name in shown}
