"""The examples that the built-in model is trained on: masks and words beside what is in `examples`.

The tokenizer is learned from `examples` alone, so that these do not change it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from examples.demo_model.examples import (
    Example,
    detection_example,
    draw_examples,
    location_tokens,
    matching,
    random_phrases,
)
from examples.demo_model.mask_autoencoder import MaskAutoencoder, masks_of
from examples.demo_model.phrases import Phrase, phrase_text
from examples.demo_model.questions import QUESTIONS
from examples.demo_model.scenes import SHAPES, TILT_DEGREES, Scene, SceneObject

#: The codes of a shape in a tilt, which is rounded to steps.
MaskCodes = Mapping[tuple[str, int], str]
TILT_STEP = 0.25  # degrees
DETECT_COUNTS, DETECT_ABSENT = (20, 40, 40), 0.4
SEGMENT_COUNTS, SEGMENT_ABSENT = (70, 25, 5), 0.2
ANY_SHAPES_RATE = 0.4  # of the added detections: labels such as `star ; circle`


def training_examples(scene: Scene, codes: MaskCodes, rng: Random) -> list[Example]:
    """Examples of a drawing in random order; the ones that must not be left out come first.

    Those are the word, if the drawing has one, or else a caption, a detection with several labels,
    and in half of the drawings masks.
    """
    if not scene.objects:
        question = QUESTIONS["background"](scene, rng)
        assert question is not None
        return [ocr_example(scene), Example("background", *question)]
    segmented = segment_example(
        random_phrases(scene, rng, counts=SEGMENT_COUNTS, absent=SEGMENT_ABSENT), scene, codes
    )
    detected = detection_example(_labels(scene, rng), scene)
    captioned, *others = draw_examples(scene, rng)
    rng.shuffle(others)
    if not scene.words:
        first = [captioned, detected]
        return [segmented, *first, *others] if rng.random() < 0.5 else [*first, *others, segmented]
    rest = [captioned, detected, segmented, *(x for x in others if x.kind != "ocr")]
    rng.shuffle(rest)
    return [ocr_example(scene), *rest]


def ocr_example(scene: Scene) -> Example:
    """The word on the drawing; the answer is empty if it has none."""
    return Example("ocr", "ocr", " ".join(word.text for word in scene.words))


def segment_example(labels: Sequence[Phrase], scene: Scene, codes: MaskCodes) -> Example:
    """The boxes of the labels, each with the codes of its mask."""
    found = [
        f"{location_tokens(box)}{codes[code_key(drawn)]} {phrase_text(label)}"
        for label, drawn, box in matching(labels, scene)
    ]
    return Example("segment", f"segment {' ; '.join(map(phrase_text, labels))}", " ; ".join(found))


def code_key(drawn: SceneObject) -> tuple[str, int]:
    """The object's shape and its tilt in steps."""
    return drawn.shape, round(drawn.tilt / TILT_STEP)


def mask_codes(autoencoder: MaskAutoencoder, resolution: float) -> MaskCodes:
    """The codes of every shape in every tilt, as text; those of the nearest multiple of degrees.

    A coarse resolution has fewer codes to learn, and masks that are turned by half of it at most.
    """
    steps = round(TILT_DEGREES / TILT_STEP)
    keys = [(shape, step) for shape in SHAPES for step in range(-steps, steps + 1)]
    masks_BRR = masks_of(
        (shape, round(step * TILT_STEP / resolution) * resolution) for shape, step in keys
    )
    code_B16 = autoencoder.encode(masks_BRR)[1].tolist()
    texts = ("".join(f"<seg{code:03d}>" for code in row) for row in code_B16)
    return dict(zip(keys, texts, strict=True))


def _labels(scene: Scene, rng: Random) -> list[Phrase]:
    """Labels to detect: shapes whether present or not, or phrases of the scene's own kind."""
    if rng.random() < ANY_SHAPES_RATE:
        return [(shape, None) for shape in rng.sample(SHAPES, rng.choice((1, 2, 3, 3)))]
    return random_phrases(scene, rng, counts=DETECT_COUNTS, absent=DETECT_ABSENT)
