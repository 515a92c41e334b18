"""Phrases for the objects of a scene, and questions about it with unambiguous answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from examples.demo_model.scenes import (
    BACKGROUNDS,
    COLOURS,
    SHAPES,
    RelativeBox,
    Scene,
    SceneObject,
)

#: A shape, a colour, or both; (None, None) describes every object.
Phrase = tuple[str | None, str | None]
QuestionAnswer = tuple[str, str]

COLOUR_WORDS = ("colour", "color")
SHAPE_WORDS = ("shape", "object", "thing")
SIDES = ("left", "right", "above", "below")
OPPOSITE = {"left": "right", "right": "left", "above": "below", "below": "above"}
SIDE_WORDS = {
    "left": ("left of", "to the left of"),
    "right": ("right of", "to the right of"),
    "above": ("above", "higher than"),
    "below": ("below", "under", "lower than"),
}
# large counts are rare in the scenes, so they are sampled more often
COUNT_WEIGHTS = (3, 2, 5, 12, 30)
MIN_SIDE_RATIO = 1.35  # of the distances along both axes, for the side to be unambiguous

HOW_MANY = (
    "how many {many} are there",
    "how many {many} are in the picture",
    "how many {many} do you see",
    "how many {many} can you see",
    "count the {many}",
    "what is the number of {many}",
)
WHICH_COLOUR = (
    "what {colour} is the {one}",
    "which {colour} is the {one}",
    "what is the {colour} of the {one}",
    "what is the {one}'s {colour}",
)
WHICH_COLOUR_ALL = (
    "what {colour} are the {many}",
    "which {colour} are the {many}",
    "what is the {colour} of the {many}",
)
WHICH_SHAPE = (
    "what shape is the {colour} one",
    "what shape is the {colour} {thing}",
    "which shape is the {colour} one",
    "what is the shape of the {colour} {thing}",
    "what is the {colour} {thing}",
    "which shape is {colour}",
)
WHICH_SHAPE_ALONE = (
    "what shape is it",
    "what shape is this",
    "what shape is in the picture",
    "which shape do you see",
    "what is the shape of the object",
)
WHERE = (
    "where is the {a} relative to the {b}",
    "where is the {a} compared to the {b}",
    "where is the {a}, seen from the {b}",
    "is the {a} left, right, above or below the {b}",
    "on which side of the {b} is the {a}",
)
IS_ON_SIDE = (*["is the {a} {side} the {b}"] * 2, "do you see the {a} {side} the {b}")
IS_THERE = (
    "is there {some}",
    "is there {some} in the picture",
    "do you see {some}",
    "can you see {some}",
    "does the picture show {some}",
    "are there any {many}",
)
WHICH_BACKGROUND = (
    "what {colour} is the background",
    "which {colour} is the background",
    "what is the background {colour}",
    "what is the {colour} of the background",
)
IS_BACKGROUND = ("is the background {name}", "is the background {colour} {name}")


def article(words: str) -> str:
    """The words with `a` or `an` before them."""
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def plural(words: str) -> str:
    """The plural of the words."""
    return words + ("es" if words.endswith("s") else "s")


def phrase_text(phrase: Phrase, noun: str = "shape") -> str:
    """The phrase in words: `red circle`, `circle`, `red shape`, `shape`."""
    shape, colour = phrase
    return f"{colour} {shape or noun}" if colour else shape or noun


def phrase_counts(scene: Scene) -> dict[Phrase, int]:
    """The number of objects that each phrase describes, for phrases that describe at least one."""
    found: dict[Phrase, int] = {}
    for drawn in scene.objects:
        for shape in (drawn.shape, None):
            for colour in (drawn.colour, None):
                found[shape, colour] = found.get((shape, colour), 0) + 1
    return found


def absent_phrase(scene: Scene, rng: Random) -> Phrase:
    """A phrase that describes no object of the scene.

    Most are hard negatives: a shape of the scene in the colour of another object.
    """
    found = phrase_counts(scene)
    shapes, colours = {t.shape for t in scene.objects}, {t.colour for t in scene.objects}
    near: list[Phrase] = [
        (shape, colour)
        for shape in SHAPES
        for colour in COLOURS
        if (shape in shapes or colour in colours) and (shape, colour) not in found
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


def how_many(scene: Scene, rng: Random) -> QuestionAnswer | None:
    """The number of objects that a phrase describes, in digits."""
    groups: dict[int, list[Phrase]] = {0: [absent_phrase(scene, rng)]}
    for phrase, number in phrase_counts(scene).items():
        groups.setdefault(number, []).append(phrase)
    numbers = sorted(groups)
    number = rng.choices(numbers, [COUNT_WEIGHTS[n] for n in numbers])[0]
    noun = rng.choice((*SHAPE_WORDS, "figure"))
    many = plural(phrase_text(rng.choice(groups[number]), noun))
    return rng.choice(HOW_MANY).format(many=many), str(number)


def which_colour(scene: Scene, rng: Random) -> QuestionAnswer | None:
    """The colour of the objects of a shape, if all of them have the same."""
    of_shape: dict[str, list[str]] = {}
    for drawn in scene.objects:
        of_shape.setdefault(drawn.shape, []).append(drawn.colour)
    clear = [shape for shape, colours in of_shape.items() if len(set(colours)) == 1]
    if not clear:
        return None
    shape = rng.choice(clear)
    colour_word, alone = rng.choice(COLOUR_WORDS), len(scene.objects) == 1
    called = rng.choice((shape, *SHAPE_WORDS)) if alone else shape
    template = rng.choice(WHICH_COLOUR if len(of_shape[shape]) == 1 else WHICH_COLOUR_ALL)
    return template.format(colour=colour_word, one=called, many=plural(shape)), of_shape[shape][0]


def which_shape(scene: Scene, rng: Random) -> QuestionAnswer | None:
    """The shape of the only object of its colour."""
    found = phrase_counts(scene)
    clear = [drawn for drawn in scene.objects if found[None, drawn.colour] == 1]
    if not clear:
        return None
    drawn = rng.choice(clear)
    alone = len(scene.objects) == 1 and rng.random() < 0.5
    template = rng.choice(WHICH_SHAPE_ALONE if alone else WHICH_SHAPE)
    return template.format(colour=drawn.colour, thing=rng.choice(SHAPE_WORDS)), drawn.shape


def where(scene: Scene, rng: Random) -> QuestionAnswer | None:
    """The side of one object on which another is."""
    pair = _pair(scene, rng)
    if pair is None:
        return None
    a, b, side = pair
    return rng.choice(WHERE).format(a=a, b=b), side


def is_on_side(scene: Scene, rng: Random) -> QuestionAnswer | None:
    """Whether an object is on a side of another; half of the answers are yes.

    A question whose answer is no asks for the opposite side.
    """
    pair = _pair(scene, rng)
    if pair is None:
        return None
    a, b, true = pair
    answer = rng.choice(("yes", "no"))
    words = rng.choice(SIDE_WORDS[true if answer == "yes" else OPPOSITE[true]])
    return rng.choice(IS_ON_SIDE).format(a=a, b=b, side=words), answer


def is_there(scene: Scene, rng: Random) -> QuestionAnswer | None:
    """Whether the scene has an object that a phrase describes; half of the answers are yes."""
    answer = rng.choice(("yes", "no"))
    present = [phrase for phrase in phrase_counts(scene) if phrase != (None, None)]
    phrase = rng.choice(present) if answer == "yes" else absent_phrase(scene, rng)
    called = phrase_text(phrase, rng.choice(SHAPE_WORDS))
    some = article(called)
    if phrase[0] is None and rng.random() < 0.5:
        some = f"anything {phrase[1]}"
    return rng.choice(IS_THERE).format(some=some, many=plural(called)), answer


def which_background(scene: Scene, rng: Random) -> QuestionAnswer | None:
    """The colour of the background, or whether it is a given colour."""
    colour_word = rng.choice(COLOUR_WORDS)
    if rng.random() < 0.6:
        return rng.choice(WHICH_BACKGROUND).format(colour=colour_word), scene.background
    answer = rng.choice(("yes", "no"))
    others = [ground for ground in BACKGROUNDS if ground != scene.background]
    named = scene.background if answer == "yes" else rng.choice(others)
    if named == "grey":
        named = rng.choice(("grey", "gray"))
    return rng.choice(IS_BACKGROUND).format(name=named, colour=colour_word), answer


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


def vary_style(question: str, rng: Random) -> str:
    """The question in a random style: capital letter, question mark and prefix `answer en`."""
    if rng.random() < 0.5:
        question = question[0].upper() + question[1:]
    if rng.random() < 0.75:
        question += "." if question.lower().startswith("count") else "?"
    return f"answer en {question}" if rng.random() < 0.25 else question


def _pair(scene: Scene, rng: Random) -> tuple[str, str, str] | None:
    """Unique phrases of two objects, and the side of the second on which the first is."""
    called = _unique_phrases(scene, rng)
    pairs = [
        (a, b, side)
        for a in called
        for b in called
        if a != b and (side := _side(scene, scene.boxes[a], scene.boxes[b])) is not None
    ]
    if not pairs:
        return None
    a, b, side = rng.choice(pairs)
    return called[a], called[b], side


def _unique_phrases(scene: Scene, rng: Random) -> dict[int, str]:
    """For each index in `objects` where there is one, a phrase that describes no other object."""
    found = phrase_counts(scene)
    called = {}
    for index, drawn in enumerate(scene.objects):
        phrases: Sequence[Phrase] = [(drawn.shape, drawn.colour)] * 2
        phrases = [*phrases, (drawn.shape, None), (None, drawn.colour)]
        fitting = [phrase for phrase in phrases if found[phrase] == 1]
        if fitting:
            called[index] = phrase_text(rng.choice(fitting), rng.choice(("shape", "one")))
    return called


def _side(scene: Scene, a: RelativeBox, b: RelativeBox) -> str | None:
    """The side of `b` on which `a` is, or None if it is ambiguous.

    The answer must hold at the drawing's own aspect ratio and at the square one of the model.
    """
    right = (a.xmin + a.xmax - b.xmin - b.xmax) / 2
    down = (a.ymin + a.ymax - b.ymin - b.ymax) / 2
    shape = scene.width / scene.height
    if abs(right) > MIN_SIDE_RATIO * max(1.0, 1 / shape) * abs(down):
        return "right" if right > 0 else "left"
    if abs(down) > MIN_SIDE_RATIO * max(1.0, shape) * abs(right):
        return "below" if down > 0 else "above"
    return None
