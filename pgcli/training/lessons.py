"""The tasks of a drawing: what a model is asked about it, with what it should answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from pgcli.training.questions import QUESTIONS, spoken
from pgcli.training.scenes import COLOURS, SHAPES, Extent, Scene
from pgcli.training.subjects import Subject, absent, article, counts, fits, name, plural

GRID = 1023  # a location token is a side's fraction times 1023, rounded (big_vision trains it so)
NUMBERS = ("no", "one", "two", "three", "four")
CAPTION_PREFIXES = ("caption en",) * 8 + ("cap en", "describe en")

#: How often a lesson of each kind is given; the questions are in `questions.QUESTIONS`.
DETECTS = 3
ABSENT = 0.28  # of the labels to detect
OFTEN = {"background": 0.4, "ocr": 0.08}


@dataclass(frozen=True, slots=True)
class Lesson:
    """A prompt and the answer it should get."""

    kind: str
    prefix: str
    suffix: str


def lessons(scene: Scene, rng: Random) -> list[Lesson]:
    """A fresh draw of tasks, 8 to 13 of them: a caption, detections, every fitting question."""
    drawn = [Lesson("caption", rng.choice(CAPTION_PREFIXES), caption(scene))]
    drawn += [detection(_wanted(scene, rng), scene) for _ in range(DETECTS)]
    kinds = [kind for kind in (*QUESTIONS, "count") if rng.random() < OFTEN.get(kind, 1.0)]
    drawn += _asked(kinds, scene, rng)
    if rng.random() < OFTEN["ocr"]:
        drawn.append(Lesson("ocr", "ocr", ""))
    return drawn


def corpus(seeds: Iterable[int]) -> Iterator[str]:
    """Every prompt and answer of the drawings of those seeds: what a tokenizer learns from."""
    for seed in seeds:
        for lesson in lessons(Scene.from_seed(seed), Random(seed)):
            yield lesson.prefix
            yield lesson.suffix


def exam(scene: Scene) -> list[Lesson]:
    """The tasks by which a model is judged, the same every time for a scene.

    One caption, each kind of question that fits, a detection of something that is there, one of
    something that may not be, and one of several labels at once.
    """
    rng = Random(f"exam {scene.seed}")
    present = sorted(counts(scene), key=str)
    maybe = absent(scene, rng) if rng.random() < 0.5 else rng.choice(present)
    return [
        Lesson("caption", "caption en", caption(scene)),
        *_asked(list(QUESTIONS), scene, rng),
        detection([rng.choice(present)], scene),
        detection([maybe], scene),
        detection(_several_wanted(scene, rng), scene),
    ]


def caption(scene: Scene) -> str:
    """The one sentence that follows from the picture.

    Things alike are grouped, by the order of colours, then of shapes; the background comes last.
    """
    found = counts(scene)
    groups = [
        _several(f"{colour} {shape}", found[shape, colour])
        for colour in COLOURS
        for shape in SHAPES
        if (shape, colour) in found
    ]
    listed = " and ".join([", ".join(groups[:-1]), groups[-1]] if len(groups) > 1 else groups)
    return f"{listed} on {article(scene.background)} background"


def detection(wanted: Sequence[Subject], scene: Scene) -> Lesson:
    """Where the wanted things are: label by label, each from left to right.

    The answer is empty where there are none.
    """
    from_left = sorted(
        zip(scene.things, scene.boxes, strict=True), key=lambda pair: (pair[1].xmin, pair[1].ymin)
    )
    found = [
        f"{locations(box)} {name(subject)}"
        for subject in wanted
        for thing, box in from_left
        if fits(subject, thing)
    ]
    return Lesson("detect", f"detect {' ; '.join(map(name, wanted))}", " ; ".join(found))


def locations(box: Extent) -> str:
    """The four location tokens of a box."""
    sides = (box.ymin, box.xmin, box.ymax, box.xmax)  # y before x
    return "".join(f"<loc{min(GRID, max(0, round(side * GRID))):04d}>" for side in sides)


def _asked(kinds: Sequence[str], scene: Scene, rng: Random) -> list[Lesson]:
    asked = ((kind, QUESTIONS[kind](scene, rng)) for kind in kinds)
    return [Lesson(kind, spoken(pair[0], rng), pair[1]) for kind, pair in asked if pair]


def _wanted(scene: Scene, rng: Random) -> list[Subject]:
    """One to three labels to detect, each by itself something that is there or is not.

    Labels that speak of the same thing are not asked for together: answers would only get longer.
    """
    wanted: list[Subject] = []
    for _ in range(rng.choices((1, 2, 3), (50, 34, 16))[0]):
        present = rng.choice(list(counts(scene)))
        subject = absent(scene, rng) if rng.random() < ABSENT else present
        if not any(fits(subject, t) and fits(other, t) for other in wanted for t in scene.things):
            wanted.append(subject)
    return list(dict.fromkeys(wanted))


def _several_wanted(scene: Scene, rng: Random) -> list[Subject]:
    while len(wanted := _wanted(scene, rng)) == 1:
        pass
    return wanted


def _several(words: str, number: int) -> str:
    return article(words) if number == 1 else f"{NUMBERS[number]} {plural(words)}"
