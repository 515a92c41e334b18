"""Prompts about a scene with their answers: captions, detections, questions, masks and words.

The tokenizer is learned from `draw_examples` alone; `training_examples` adds masks and words.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from examples.demo_model.questions import (
    QUESTIONS,
    Phrase,
    absent_phrase,
    article,
    matches,
    phrase_counts,
    phrase_text,
    plural,
    vary_style,
)
from examples.demo_model.scenes import COLOURS, SHAPES, RelativeBox, Scene, SceneObject

#: The codes of a shape in a tilt, which is rounded to steps.
MaskCodes = Mapping[tuple[str, int], str]
TILT_STEP = 0.25  # degrees
GRID = 1023  # a location token is a side's fraction times 1023, rounded (big_vision trains it so)
NUMBERS = ("no", "one", "two", "three", "four")
CAPTION_PREFIXES = ("caption en",) * 8 + ("cap en", "describe en")

#: How often each kind of example is drawn; the kinds of questions are in `questions.QUESTIONS`.
DETECTIONS_PER_SCENE = 3
LABEL_COUNTS = (50, 34, 16)  # of 100 detections, those with one, two and three labels
ABSENT_RATE = 0.28  # of the labels to detect
KIND_RATES = {"background": 0.4, "ocr": 0.08}
#: Of the detections and masks that are added for training.
DETECT_COUNTS, DETECT_ABSENT = (20, 40, 40), 0.4
SEGMENT_COUNTS, SEGMENT_ABSENT = (70, 25, 5), 0.2
ANY_SHAPES_RATE = 0.4  # of the added detections: labels such as `star ; circle`


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt and its answer."""

    kind: str
    prefix: str
    suffix: str


def draw_examples(scene: Scene, rng: Random) -> list[Example]:
    """8 to 13 random examples: a caption, detections, and every question that has an answer."""
    drawn = [Example("caption", rng.choice(CAPTION_PREFIXES), caption(scene))]
    drawn += [
        detection_example(random_phrases(scene, rng), scene) for _ in range(DETECTIONS_PER_SCENE)
    ]
    kinds = [kind for kind in (*QUESTIONS, "count") if rng.random() < KIND_RATES.get(kind, 1.0)]
    drawn += _question_examples(kinds, scene, rng)
    if rng.random() < KIND_RATES["ocr"]:
        drawn.append(Example("ocr", "ocr", ""))
    return drawn


def tokenizer_corpus(seeds: Iterable[int]) -> Iterator[str]:
    """Every prompt and answer of the drawings of the seeds, for training a tokenizer."""
    for seed in seeds:
        for example in draw_examples(Scene.from_seed(seed), Random(seed)):
            yield example.prefix
            yield example.suffix


def eval_examples(scene: Scene) -> list[Example]:
    """The examples that a model is evaluated on, always the same for a scene.

    One caption, each kind of question that has an answer, a detection of an object of the scene,
    one of an object that may be absent, and one of several labels.
    """
    rng = Random(f"exam {scene.seed}")  # another text would draw other examples
    present = sorted(phrase_counts(scene), key=str)
    maybe = absent_phrase(scene, rng) if rng.random() < 0.5 else rng.choice(present)
    return [
        Example("caption", "caption en", caption(scene)),
        *_question_examples(list(QUESTIONS), scene, rng),
        detection_example([rng.choice(present)], scene),
        detection_example([maybe], scene),
        detection_example(_two_or_more_phrases(scene, rng), scene),
    ]


def caption(scene: Scene, shapes: Sequence[str] = SHAPES) -> str:
    """The caption of the scene.

    Equal objects are counted together, in the order of colours, then of shapes; the background
    comes last.
    """
    found = phrase_counts(scene)
    groups = [
        _counted(f"{colour} {shape}", found[shape, colour])
        for colour in COLOURS
        for shape in shapes
        if (shape, colour) in found
    ]
    listed = " and ".join([", ".join(groups[:-1]), groups[-1]] if len(groups) > 1 else groups)
    return f"{listed} on {article(scene.background)} background"


def detection_example(labels: Sequence[Phrase], scene: Scene) -> Example:
    """The boxes of the labels, label by label, each from left to right.

    The answer is empty if no label is in the scene.
    """
    found = [
        f"{location_tokens(box)} {phrase_text(label)}" for label, _, box in matching(labels, scene)
    ]
    return Example("detect", f"detect {' ; '.join(map(phrase_text, labels))}", " ; ".join(found))


def matching(
    labels: Sequence[Phrase], scene: Scene
) -> Iterator[tuple[Phrase, SceneObject, RelativeBox]]:
    """The objects that each label describes, label by label, each from left to right."""
    from_left = sorted(
        zip(scene.objects, scene.boxes, strict=True), key=lambda pair: (pair[1].xmin, pair[1].ymin)
    )
    for label in labels:
        for drawn, box in from_left:
            if matches(label, drawn):
                yield label, drawn, box


def location_tokens(box: RelativeBox) -> str:
    """The four location tokens of a box."""
    sides = (box.ymin, box.xmin, box.ymax, box.xmax)  # y before x
    return "".join(f"<loc{min(GRID, max(0, round(side * GRID))):04d}>" for side in sides)


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


def _question_examples(kinds: Sequence[str], scene: Scene, rng: Random) -> list[Example]:
    pairs = ((kind, QUESTIONS[kind](scene, rng)) for kind in kinds)
    return [Example(kind, vary_style(pair[0], rng), pair[1]) for kind, pair in pairs if pair]


def random_phrases(
    scene: Scene,
    rng: Random,
    *,
    counts: Sequence[int] = LABEL_COUNTS,
    absent: float = ABSENT_RATE,
) -> list[Phrase]:
    """One to three labels, how often is in `counts`, each absent at the rate `absent`.

    Labels that describe the same object are not combined, since the answers would only be longer.
    """
    labels: list[Phrase] = []
    for _ in range(rng.choices((1, 2, 3), counts)[0]):
        present = rng.choice(list(phrase_counts(scene)))
        label = absent_phrase(scene, rng) if rng.random() < absent else present
        if not any(
            matches(label, o) and matches(other, o) for other in labels for o in scene.objects
        ):
            labels.append(label)
    return list(dict.fromkeys(labels))


def _two_or_more_phrases(scene: Scene, rng: Random) -> list[Phrase]:
    while len(labels := random_phrases(scene, rng)) == 1:
        pass
    return labels


def _counted(words: str, number: int) -> str:
    return article(words) if number == 1 else f"{NUMBERS[number]} {plural(words)}"


def _labels(scene: Scene, rng: Random) -> list[Phrase]:
    """Labels to detect: shapes whether present or not, or phrases of the scene's own kind."""
    if rng.random() < ANY_SHAPES_RATE:
        return [(shape, None) for shape in rng.sample(SHAPES, rng.choice((1, 2, 3, 3)))]
    return random_phrases(scene, rng, counts=DETECT_COUNTS, absent=DETECT_ABSENT)
