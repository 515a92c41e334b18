"""Prompts about a drawing and their answers: captions, boxes, masks, questions and words."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

from examples.demo_model.scenes import (
    BACKGROUNDS,
    COLOURS,
    SHAPES,
    RelativeBox,
    Scene,
    SceneObject,
)
from pgcli.parsing import detection_text
from pgcli.records import Box

#: A shape, a colour, or both; (None, None) describes every object.
Phrase = tuple[str | None, str | None]
QuestionAnswer = tuple[str, str]
#: The codes of each shape at each multiple of 4 degrees, from the shipped decoder's encoder.
MASK_CODES = json.loads(Path(__file__).with_name("mask_codes.json").read_text())

NUMBERS = ("no", "one", "two", "three", "four")
CAPTION_PREFIXES = ("caption en",) * 8 + ("cap en", "describe en")

#: How often each kind of example is drawn; kinds without a rate are always drawn.
KIND_RATES = {"background": 0.4, "ocr": 0.08}
#: Of 100 detections or masks, how many have one, two and three labels; the rate of absent labels.
LABELS = ((50, 34, 16), 0.28)
TRAINING_LABELS = ((20, 40, 40), 0.4)
MASK_LABELS = ((70, 25, 5), 0.2)
ANY_SHAPES_RATE = 0.4  # of the extra detections for training: labels `star ; circle`
# large counts are rare in the scenes, so they are sampled more often
COUNT_WEIGHTS = (3, 2, 5, 12, 30)
MIN_SIDE_RATIO = 1.35  # of the distances along both axes, so that the side is unambiguous

COLOUR_WORDS = ("colour", "color")
SHAPE_WORDS = ("shape", "object", "thing")
OPPOSITE = {"left": "right", "right": "left", "above": "below", "below": "above"}
SIDE_WORDS = {
    "left": ("left of", "to the left of"),
    "right": ("right of", "to the right of"),
    "above": ("above", "higher than"),
    "below": ("below", "under", "lower than"),
}
#: The wordings of each kind of question.
TEMPLATES = json.loads(Path(__file__).with_name("templates.json").read_text())


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt and its answer."""

    kind: str
    prefix: str
    suffix: str


def eval_examples(scene: Scene) -> list[Example]:
    """The evaluation examples of a scene, always the same.

    One caption, each kind of question that has an answer, and three detections: of an object in
    the scene, of one that may be absent, and of several labels.
    """
    rng = Random(f"exam {scene.seed}")  # another text would draw different examples
    present = sorted(phrase_counts(scene), key=str)
    maybe = absent_phrase(scene, rng) if rng.random() < 0.5 else rng.choice(present)
    questions = question_examples(list(QUESTIONS), scene, rng)
    first = rng.choice(present)
    while len(several := random_phrases(scene, rng)) == 1:
        pass
    detections = [boxes_example(labels, scene) for labels in ([first], [maybe], several)]
    return [Example("caption", "caption en", caption(scene)), *questions, *detections]


def draw_examples(scene: Scene, rng: Random) -> list[Example]:
    """8 to 13 random examples: a caption, detections, and every question that has an answer."""
    drawn = [Example("caption", rng.choice(CAPTION_PREFIXES), caption(scene))]
    drawn += [boxes_example(random_phrases(scene, rng), scene) for _ in range(3)]
    kinds = [kind for kind in (*QUESTIONS, "count") if rng.random() < KIND_RATES.get(kind, 1.0)]
    drawn += question_examples(kinds, scene, rng)
    if rng.random() < KIND_RATES["ocr"]:
        drawn.append(Example("ocr", "ocr", ""))
    return drawn


def training_examples(scene: Scene, rng: Random) -> list[Example]:
    """Examples of a drawing in random order; the essential ones come first.

    Essential are the word, if the drawing has one, or else a caption, a detection with several
    labels, and for half of the drawings masks.
    """
    if not scene.objects:
        return [ocr_example(scene), Example("background", *which_background(scene, rng))]
    segmented = boxes_example(random_phrases(scene, rng, *MASK_LABELS), scene, "segment")
    if rng.random() >= ANY_SHAPES_RATE:
        labels = random_phrases(scene, rng, *TRAINING_LABELS)
    else:  # whether present or not
        labels = [(shape, None) for shape in rng.sample(SHAPES, rng.choice((1, 2, 3, 3)))]
    detected = boxes_example(labels, scene)
    captioned, *others = draw_examples(scene, rng)
    rng.shuffle(others)
    if not scene.words:
        first = [captioned, detected]
        return [segmented, *first, *others] if rng.random() < 0.5 else [*first, *others, segmented]
    examples = [captioned, detected, segmented, *(x for x in others if x.kind != "ocr")]
    rng.shuffle(examples)
    return [ocr_example(scene), *examples]


def ocr_example(scene: Scene) -> Example:
    """The word on the drawing; the answer is empty if it has none."""
    return Example("ocr", "ocr", " ".join(word.text for word in scene.words))


def caption(scene: Scene, shapes: Sequence[str] = SHAPES) -> str:
    """The caption of the scene.

    Equal objects are counted together, in the order of colours, then of shapes; the background
    comes last.
    """
    numbers = phrase_counts(scene)
    groups = []
    for kind in ((shape, colour) for colour in COLOURS for shape in shapes):
        words, number = phrase_text(kind), numbers.get(kind, 0)
        if number:
            groups.append(article(words) if number == 1 else f"{NUMBERS[number]} {plural(words)}")
    listed = " and ".join([", ".join(groups[:-1]), groups[-1]] if len(groups) > 1 else groups)
    return f"{listed} on {article(scene.background)} background"


def boxes_example(labels: Sequence[Phrase], scene: Scene, kind: str = "detect") -> Example:
    """The boxes of the labels, label by label, each from left to right; for `segment` with masks.

    The answer is empty if no label is in the scene.
    """
    matched = [*matching(labels, scene)]
    boxes = [Box(phrase_text(label), **asdict(box)) for label, _, box in matched]
    codes = [mask_codes(drawn) for _, drawn, _ in matched if kind == "segment"]
    answer = detection_text(boxes, codes, width=1, height=1)
    return Example(kind, f"{kind} {' ; '.join(map(phrase_text, labels))}", answer)


def mask_codes(drawn: SceneObject) -> list[int]:
    """The codes of the object's mask, for the nearest tilt with codes."""
    codes: list[int] = MASK_CODES[drawn.shape][str(4 * round(drawn.tilt / 4))]
    return codes


def matching(
    labels: Sequence[Phrase], scene: Scene
) -> Iterator[tuple[Phrase, SceneObject, RelativeBox]]:
    """The objects that each label describes, label by label, each from left to right."""
    pairs = zip(scene.objects, scene.boxes, strict=True)
    from_left = sorted(pairs, key=lambda pair: (pair[1].xmin, pair[1].ymin))
    for label in labels:
        for drawn, box in from_left:
            if matches(label, drawn):
                yield label, drawn, box


def random_phrases(
    scene: Scene, rng: Random, counts: Sequence[int] = LABELS[0], absent: float = LABELS[1]
) -> list[Phrase]:
    """One to three labels with the frequencies `counts`, each absent at the rate `absent`.

    Labels of the same object are not combined, because that would only lengthen the answers.
    """
    labels: list[Phrase] = []
    for _ in range(rng.choices((1, 2, 3), counts)[0]):
        present = rng.choice(list(phrase_counts(scene)))
        label = absent_phrase(scene, rng) if rng.random() < absent else present
        if not any(matches(label, o) and matches(own, o) for own in labels for o in scene.objects):
            labels.append(label)
    return list(dict.fromkeys(labels))


def phrase_counts(scene: Scene) -> dict[Phrase, int]:
    """The number of objects that match each phrase, for phrases that match at least one."""
    numbers: dict[Phrase, int] = {}
    for drawn in scene.objects:
        for shape in (drawn.shape, None):
            for colour in (drawn.colour, None):
                numbers[shape, colour] = numbers.get((shape, colour), 0) + 1
    return numbers


def absent_phrase(scene: Scene, rng: Random) -> Phrase:
    """A phrase that describes no object of the scene.

    Most are hard negatives: a shape of the scene in the colour of another object.
    """
    present = phrase_counts(scene)
    shapes, colours = {t.shape for t in scene.objects}, {t.colour for t in scene.objects}
    near: list[Phrase] = [
        (shape, colour)
        for shape in SHAPES
        for colour in COLOURS
        if (shape in shapes or colour in colours) and (shape, colour) not in present
    ]
    mixed = [s for s in near if s[0] in shapes and s[1] in colours]
    far: list[Phrase] = [(shape, None) for shape in SHAPES if shape not in shapes]
    far += [(None, colour) for colour in COLOURS if colour not in colours]
    pools: list[list[Phrase]] = [mixed or near, near, far]
    return rng.choice(rng.choices(pools, (45, 20, 35))[0])


def matches(phrase: Phrase, drawn: SceneObject) -> bool:
    """Whether the phrase describes the object."""
    shape, colour = phrase
    return shape in (None, drawn.shape) and colour in (None, drawn.colour)


def article(words: str) -> str:
    """The words with `a` or `an`."""
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def plural(words: str) -> str:
    """The plural of the words."""
    return words + ("es" if words.endswith("s") else "s")


def phrase_text(phrase: Phrase, noun: str = "shape") -> str:
    """The phrase in words: `red circle`, `circle`, `red shape`, `shape`."""
    shape, colour = phrase
    return f"{colour} {shape or noun}" if colour else shape or noun


def how_many(scene: Scene, rng: Random) -> QuestionAnswer:
    """The number of objects that a phrase describes, in digits."""
    groups: dict[int, list[Phrase]] = {0: [absent_phrase(scene, rng)]}
    for phrase, number in phrase_counts(scene).items():
        groups.setdefault(number, []).append(phrase)
    numbers = sorted(groups)
    number = rng.choices(numbers, [COUNT_WEIGHTS[n] for n in numbers])[0]
    noun = rng.choice((*SHAPE_WORDS, "figure"))
    many = plural(phrase_text(rng.choice(groups[number]), noun))
    return rng.choice(TEMPLATES["how many"]).format(many=many), str(number)


def which_colour(scene: Scene, rng: Random) -> QuestionAnswer | None:
    """The colour of the objects of a shape, if they share it."""
    of_shape: dict[str, list[str]] = {}
    for drawn in scene.objects:
        of_shape.setdefault(drawn.shape, []).append(drawn.colour)
    clear = [shape for shape, colours in of_shape.items() if len(set(colours)) == 1]
    if not clear:
        return None
    shape = rng.choice(clear)
    colour_word, alone = rng.choice(COLOUR_WORDS), len(scene.objects) == 1
    called = rng.choice((shape, *SHAPE_WORDS)) if alone else shape
    kind = "which colour" if len(of_shape[shape]) == 1 else "which colour, of several"
    template = rng.choice(TEMPLATES[kind])
    values = {"colour": colour_word, "single": called, "many": plural(shape)}
    return template.format(**values), of_shape[shape][0]


def which_shape(scene: Scene, rng: Random) -> QuestionAnswer | None:
    """The shape of the only object of its colour."""
    numbers = phrase_counts(scene)
    clear = [drawn for drawn in scene.objects if numbers[None, drawn.colour] == 1]
    if not clear:
        return None
    drawn = rng.choice(clear)
    alone = len(scene.objects) == 1 and rng.random() < 0.5
    template = rng.choice(TEMPLATES["which shape, of one"] if alone else TEMPLATES["which shape"])
    return template.format(colour=drawn.colour, thing=rng.choice(SHAPE_WORDS)), drawn.shape


def where(scene: Scene, rng: Random) -> QuestionAnswer | None:
    """On which side of an object another object is."""
    pair = _pair(scene, rng)
    if pair is None:
        return None
    a, b, side = pair
    return rng.choice(TEMPLATES["where"]).format(a=a, b=b), side


def is_on_side(scene: Scene, rng: Random) -> QuestionAnswer | None:
    """Whether an object is on a side of another; half of the answers are yes.

    Questions with the answer no ask for the opposite side.
    """
    pair = _pair(scene, rng)
    if pair is None:
        return None
    a, b, true = pair
    answer = rng.choice(("yes", "no"))
    words = rng.choice(SIDE_WORDS[true if answer == "yes" else OPPOSITE[true]])
    return rng.choice(TEMPLATES["is on a side"]).format(a=a, b=b, side=words), answer


def is_there(scene: Scene, rng: Random) -> QuestionAnswer:
    """Whether the scene has an object that a phrase describes; half of the answers are yes."""
    answer = rng.choice(("yes", "no"))
    present = [phrase for phrase in phrase_counts(scene) if phrase != (None, None)]
    phrase = rng.choice(present) if answer == "yes" else absent_phrase(scene, rng)
    called = phrase_text(phrase, rng.choice(SHAPE_WORDS))
    is_any = phrase[0] is None and rng.random() < 0.5
    single = f"anything {phrase[1]}" if is_any else article(called)
    return rng.choice(TEMPLATES["is there"]).format(single=single, many=plural(called)), answer


def which_background(scene: Scene, rng: Random) -> QuestionAnswer:
    """The colour of the background, or whether it is a given colour."""
    colour_word = rng.choice(COLOUR_WORDS)
    if rng.random() < 0.6:
        template = rng.choice(TEMPLATES["which background"])
        return template.format(colour=colour_word), scene.background
    answer = rng.choice(("yes", "no"))
    others = [ground for ground in BACKGROUNDS if ground != scene.background]
    named = scene.background if answer == "yes" else rng.choice(others)
    if named == "grey":
        named = rng.choice(("grey", "gray"))
    return rng.choice(TEMPLATES["is the background"]).format(name=named, colour=colour_word), answer


#: Every kind of question; each returns None if the scene has no unambiguous answer.
QUESTIONS: dict[str, Callable[[Scene, Random], QuestionAnswer | None]] = {
    "count": how_many,
    "colour": which_colour,
    "shape": which_shape,
    "where": where,
    "side": is_on_side,
    "exists": is_there,
    "background": which_background,
}


def question_examples(kinds: Sequence[str], scene: Scene, rng: Random) -> list[Example]:
    """Questions of the kinds that have an answer here, in random styles."""
    pairs = ((kind, QUESTIONS[kind](scene, rng)) for kind in kinds)
    return [Example(kind, vary_style(pair[0], rng), pair[1]) for kind, pair in pairs if pair]


def vary_style(question: str, rng: Random) -> str:
    """The question in a random style: capital letter, question mark and prefix `answer en`."""
    if rng.random() < 0.5:
        question = question[0].upper() + question[1:]
    if rng.random() < 0.75:
        question += "." if question.lower().startswith("count") else "?"
    return f"answer en {question}" if rng.random() < 0.25 else question


def _pair(scene: Scene, rng: Random) -> tuple[str, str, str] | None:
    """Unique phrases for two objects, and the side of the second on which the first is."""
    numbers = phrase_counts(scene)
    called = {}  # by an object's number, a phrase that describes only it
    for number, drawn in enumerate(scene.objects):
        phrases: list[Phrase] = [(drawn.shape, drawn.colour)] * 2
        phrases += [(drawn.shape, None), (None, drawn.colour)]
        fitting = [phrase for phrase in phrases if numbers[phrase] == 1]
        if fitting:
            called[number] = phrase_text(rng.choice(fitting), rng.choice(("shape", "one")))
    pairs = [
        (called[a], called[b], side)
        for a in called
        for b in called
        if a != b and (side := _side(scene, scene.boxes[a], scene.boxes[b])) is not None
    ]
    return rng.choice(pairs) if pairs else None


def _side(scene: Scene, a: RelativeBox, b: RelativeBox) -> str | None:
    """The side of `b` on which `a` is, or None if it is ambiguous.

    The answer must hold at the drawing's own aspect ratio and at the model's square one.
    """
    right = (a.xmin + a.xmax - b.xmin - b.xmax) / 2
    down = (a.ymin + a.ymax - b.ymin - b.ymax) / 2
    shape = scene.width / scene.height
    if abs(right) > MIN_SIDE_RATIO * max(1.0, 1 / shape) * abs(down):
        return "right" if right > 0 else "left"
    if abs(down) > MIN_SIDE_RATIO * max(1.0, shape) * abs(right):
        return "below" if down > 0 else "above"
    return None
