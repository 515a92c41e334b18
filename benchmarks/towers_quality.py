"""Quality of the built-in towers on 1,000 drawings outside their training data.

Retrieval among 100 distinct drawings, zero-shot labels, and changed copies of drawings found by a
threshold: `python benchmarks/towers_quality.py`, or with `--model` for other towers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO
from random import Random
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.measure import options
from examples.demo_model.questions import caption
from examples.demo_model.scenes import COLOURS, EVAL_SEEDS, SHAPES, Scene, render
from pgcli.checkpoints.find import find
from pgcli.images import ImageDecoder
from pgcli.records import Item
from pgcli.towers.engine import EmbeddingEngine, open_towers

GROUP = 100  # candidates in a retrieval
PRECISION = 0.95
SHAPE_TEMPLATE, COLOUR_TEMPLATE = "a photo of a {label}", "a {label} shape"
CHANGES = ("turned", "scaled", "recompressed", "all three")


def main() -> None:
    args = options(__doc__, model="demo-towers", drawings=len(EVAL_SEEDS), device="cpu")
    engine = open_towers(find(args.model), dtype="float32", device=args.device)
    scenes = [Scene.from_seed(seed) for seed in EVAL_SEEDS[: args.drawings]]
    drawn = [render(scene) for scene in scenes]
    image_ND = encode(engine, drawn)
    report = {"model": engine.label, "drawings": len(scenes)}
    report |= retrieval(engine, scenes, image_ND)
    report |= labels(engine, scenes, image_ND)
    copies = [changed(image, scene, CHANGES) for image, scene in zip(drawn, scenes, strict=True)]
    report |= duplicates(image_ND, encode(engine, copies), scenes)
    print(json.dumps(report, indent=1))


def encode(engine: EmbeddingEngine, images: Iterable[Image.Image]) -> np.ndarray:
    """The vectors of images (N, D), from PNG files and decoded as by the commands."""
    decoder = ImageDecoder(engine.spec)

    def stream() -> Iterator[tuple[int, Any]]:
        for index, image in enumerate(images):
            file = BytesIO()
            image.save(file, "PNG", compress_level=1)
            yield index, decoder(Item(index, str(index), "", data=file.getvalue()))

    return np.stack([encoded.vector for _, encoded in engine.encode(stream())])


def retrieval(
    engine: EmbeddingEngine, scenes: Sequence[Scene], image_ND: np.ndarray
) -> dict[str, Any]:
    """Recall at 1 in both directions, within groups of drawings that all differ."""
    to_image, to_text = [], []
    for group in distinct_groups(scenes):
        text_ND = engine.encode_texts([caption(scenes[index]) for index in group])
        cosine = image_ND[group] @ text_ND.T
        truth = np.arange(len(group))
        to_text.append((cosine.argmax(1) == truth).mean())
        to_image.append((cosine.argmax(0) == truth).mean())
    return {
        "groups": len(to_text),
        "text_to_image": round(float(np.mean(to_image)), 4),
        "image_to_text": round(float(np.mean(to_text)), 4),
    }


def distinct_groups(scenes: Sequence[Scene]) -> Iterator[list[int]]:
    """Groups of GROUP drawings with different captions."""
    groups: list[dict[str, int]] = []
    for index, scene in enumerate(scenes):
        words = caption(scene)
        group = next(
            (members for members in groups if len(members) < GROUP and words not in members), None
        )
        if group is None:
            groups.append(group := {})
        group[words] = index
    yield from ([*group.values()] for group in groups if len(group) == GROUP)


def labels(
    engine: EmbeddingEngine, scenes: Sequence[Scene], image_ND: np.ndarray
) -> dict[str, Any]:
    """Accuracy of the shape and of the colour, on drawings where all objects share it."""
    shapes = [{drawn.shape for drawn in scene.objects} for scene in scenes]
    colours = [{drawn.colour for drawn in scene.objects} for scene in scenes]
    return {
        **accuracy("shape", engine, SHAPE_TEMPLATE, SHAPES, shapes, image_ND),
        **accuracy("colour", engine, COLOUR_TEMPLATE, [*COLOURS], colours, image_ND),
    }


def accuracy(
    name: str,
    engine: EmbeddingEngine,
    template: str,
    choices: Sequence[str],
    truths: Sequence[set[str]],
    image_ND: np.ndarray,
) -> dict[str, Any]:
    text_KD = engine.encode_texts([template.format(label=choice) for choice in choices])
    alike = [index for index, truth in enumerate(truths) if len(truth) == 1]
    best = (image_ND[alike] @ text_KD.T).argmax(1)
    right = [{choices[number]} == truths[i] for number, i in zip(best, alike, strict=True)]
    return {name: round(float(np.mean(right)), 4), f"{name}_drawings": len(alike)}


def changed(image: Image.Image, scene: Scene, kinds: Sequence[str]) -> Image.Image:
    """A copy of the drawing with one of the CHANGES, by its index."""
    rng = Random(f"copy {scene.seed}")
    kind = kinds[scene.seed % len(kinds)]
    if kind in ("turned", "all three"):
        degrees = rng.choice((90, 180, 270)) if rng.random() < 0.5 else rng.uniform(-20, 20)
        bicubic, ground = Image.Resampling.BICUBIC, scene.background_rgb
        image = image.rotate(degrees, bicubic, expand=True, fillcolor=ground)
    if kind in ("scaled", "all three"):
        factor = rng.uniform(0.25, 0.8)
        size = [max(24, round(side * factor)) for side in image.size]
        image = image.resize((size[0], size[1]), Image.Resampling.LANCZOS)
    if kind in ("recompressed", "all three"):
        file = BytesIO()
        image.save(file, "JPEG", quality=rng.randint(20, 60))
        image = Image.open(file).convert("RGB")
    return image


def duplicates(
    image_ND: np.ndarray, copy_ND: np.ndarray, scenes: Sequence[Scene]
) -> dict[str, Any]:
    """Precision and recall of pairs above a threshold that the first half determines."""
    half = len(scenes) // 2
    threshold = choose_threshold(*pair_scores(image_ND[:half], copy_ND[:half]))
    cosines, is_copy = pair_scores(image_ND[half:], copy_ND[half:])
    is_found = cosines >= threshold
    own = (image_ND[half:] * copy_ND[half:]).sum(1) >= threshold
    kinds = np.array([scene.seed % len(CHANGES) for scene in scenes[half:]])
    return {
        "copy_threshold": round(float(threshold), 4),
        "copy_precision": round(float(is_copy[is_found].mean()), 4),
        "copy_recall": round(float(is_found[is_copy].mean()), 4),
        "copy_recall_by_change": {
            name: round(float(own[kinds == number].mean()), 4)
            for number, name in enumerate(CHANGES)
        },
    }


def pair_scores(image_ND: np.ndarray, copy_ND: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The cosines of all pairs of drawings and copies, and which pairs match."""
    every = np.concatenate([image_ND, copy_ND])
    first, second = np.triu_indices(len(every), k=1)
    return (every @ every.T)[first, second], second - first == len(image_ND)


def choose_threshold(cosines: np.ndarray, is_copy: np.ndarray) -> float:
    """The lowest threshold above which the share of true copies is at least PRECISION."""
    order = np.argsort(-cosines)
    precision = np.cumsum(is_copy[order]) / np.arange(1, len(order) + 1)
    last = np.flatnonzero(precision >= PRECISION)
    return float(cosines[order[last[-1]]]) if len(last) else 1.0


if __name__ == "__main__":
    main()
