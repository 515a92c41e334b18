"""The scenes: equal for equal seeds, with right and balanced examples."""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import math
import re
from collections import Counter
from pathlib import Path
from random import Random

import numpy
import pytest
from PIL import Image, ImageOps

from examples.demo_model import scenes
from examples.demo_model.examples import (
    Example,
    caption,
    detection_example,
    draw_examples,
    eval_examples,
)
from examples.demo_model.render import render, scaled_size
from examples.demo_model.scenes import COLOURS, GAP, SHAPES, TRAINING_SEEDS, Scene

EXAMPLES = Path(__file__).parents[2] / "examples"
BOX = re.compile(r"<loc(\d{4})>" * 4 + r" ([a-z ]+?)(?: ; |$)")
NUMBERS = {"a": 1, "an": 1, "two": 2, "three": 3, "four": 4}


@pytest.fixture(scope="module")
def many() -> list[Scene]:
    return [Scene.from_seed(seed) for seed in TRAINING_SEEDS[:2000]]


@pytest.fixture(scope="module")
def drawn_examples(many: list[Scene]) -> list[list[Example]]:
    return [draw_examples(scene, Random(scene.seed)) for scene in many]


def answers(drawn_examples: list[list[Example]], kind: str) -> Counter[str]:
    return Counter(
        example.suffix for drawn in drawn_examples for example in drawn if example.kind == kind
    )


def share(counted: Counter[str], answer: str) -> float:
    return counted[answer] / counted.total()


def golden(seeds: range) -> str:
    facts = []
    for scene in map(Scene.from_seed, seeds):
        objects = [
            (t.shape, t.colour, t.rgb, *(round(n, 4) for n in (t.x, t.y, t.radius, t.tilt)))
            for t in scene.objects
        ]
        facts.append((scene.width, scene.height, scene.background, scene.background_rgb, objects))
        facts += [(x.kind, x.prefix, x.suffix) for x in draw_examples(scene, Random(scene.seed))]
        facts += [(x.kind, x.prefix, x.suffix) for x in eval_examples(scene)]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


# The seeds


def test_no_seed_has_two_purposes() -> None:
    ranges = [value for name, value in vars(scenes).items() if name.endswith("_SEEDS")]
    assert len(ranges) == 5
    for a, b in itertools.combinations(ranges, 2):
        assert a[-1] < b[0] or b[-1] < a[0]


def test_a_seed_always_gives_the_same_drawing() -> None:
    for seed in range(20):
        first, again = Scene.from_seed(seed), Scene.from_seed(seed)
        assert first == again
        assert render(first).tobytes() == render(again).tobytes()
        assert draw_examples(first, Random(7)) == draw_examples(again, Random(7))
        assert eval_examples(first) == eval_examples(again)


def test_scenes_are_those_of_the_built_in_models_training() -> None:
    # with another hash, the built-in model must be trained again
    assert golden(range(100)) == "f28e74a22504d77b"


# The objects


def test_every_shape_colour_background_and_number_occurs(many: list[Scene]) -> None:
    assert {t.shape for s in many for t in s.objects} == set(SHAPES)
    assert {t.colour for s in many for t in s.objects} == set(COLOURS)
    assert Counter(s.background for s in many).keys() == {"white", "grey", "black"}
    assert Counter(len(s.objects) for s in many).keys() == {1, 2, 3, 4}
    wide, tall = (sum(s.width > s.height for s in many), sum(s.width < s.height for s in many))
    assert wide > 500
    assert tall > 500
    assert all(0.59 < min(s.width, s.height) / max(s.width, s.height) <= 1 for s in many)


def test_one_to_four_equal_shapes_are_all_frequent(many: list[Scene]) -> None:
    most = Counter(max(Counter(t.shape for t in s.objects).values()) for s in many)
    assert all(most[number] > 0.06 * len(many) for number in (1, 2, 3, 4)), most


def test_objects_do_not_overlap_and_are_not_cropped(many: list[Scene]) -> None:
    for scene in many:
        gap = 0.99 * GAP * min(scene.width, scene.height)
        for a, b in itertools.combinations(scene.objects, 2):
            assert math.hypot(a.x - b.x, a.y - b.y) > a.radius + b.radius + gap
        for box in scene.boxes:
            assert 0 < box.xmin < box.xmax < 1
            assert 0 < box.ymin < box.ymax < 1


def test_objects_are_large_enough(many: list[Scene]) -> None:
    for scene in many:
        shorter = min(scene.width, scene.height)
        for box in scene.boxes:
            assert 0.15 < (box.xmax - box.xmin) * scene.width / shorter < 0.47
            assert 0.15 < (box.ymax - box.ymin) * scene.height / shorter < 0.47


def test_colours_and_backgrounds_are_far_apart() -> None:
    named = {**COLOURS, **scenes.BACKGROUNDS}
    for (_, a), (_, b) in itertools.combinations(named.items(), 2):
        assert math.dist(a, b) > 90


# The pixels


@pytest.mark.parametrize("longer", [None, 200])
def test_boxes_bound_the_drawn_pixels(longer: int | None) -> None:
    for seed in range(150):
        scene = Scene.from_seed(seed)
        if len(scene.objects) > 1:
            continue
        size = (scene.width, scene.height) if longer is None else scaled_size(scene, longer)
        pixels = numpy.asarray(render(scene, *size)).astype(int)
        far = numpy.abs(pixels - numpy.array(scene.background_rgb)).max(axis=2) > 24
        ys, xs = numpy.nonzero(far)
        drawn = (xs.min(), ys.min(), xs.max() + 1, ys.max() + 1)
        box = scene.boxes[0]
        expected = (box.xmin * size[0], box.ymin * size[1], box.xmax * size[0], box.ymax * size[1])
        assert max(abs(a - b) for a, b in zip(drawn, expected, strict=True)) <= 1.2, seed


def test_each_object_is_drawn_at_its_position_in_its_colour(many: list[Scene]) -> None:
    for scene in many[:100]:
        image = render(scene)
        assert image.size == (scene.width, scene.height)
        for drawn in scene.objects:
            assert image.getpixel((round(drawn.x), round(drawn.y))) == drawn.rgb
        assert image.getpixel((0, 0)) == scene.background_rgb


def test_edges_are_smooth() -> None:
    scene = next(s for s in map(Scene.from_seed, range(99)) if len(s.objects) == 1)
    assert len(render(scene).getcolors(100_000)) > 5


# The examples


def test_captions_describe_the_objects(many: list[Scene]) -> None:
    for scene in many:
        listed, ground = re.fullmatch(r"(.+) on a (\w+) background", caption(scene)).groups()
        counted: Counter[tuple[str, str]] = Counter()
        for group in re.split(", | and ", listed):
            number, colour, shape = group.split()
            assert (number in ("a", "an")) == (NUMBERS[number] == 1)
            shape = {"crosses": "cross"}.get(shape, shape if number[0] == "a" else shape[:-1])
            counted[colour, shape] += NUMBERS[number]
        assert counted == Counter((t.colour, t.shape) for t in scene.objects)
        assert ground == scene.background


def test_captions_have_one_order() -> None:
    first = next(s for s in map(Scene.from_seed, range(500)) if len(s.objects) == 4)
    turned = Scene(**{**vars_of(first), "objects": first.objects[::-1]})
    assert caption(turned) == caption(first)


def vars_of(scene: Scene) -> dict[str, object]:
    return {name: getattr(scene, name) for name in Scene.__dataclass_fields__}


def test_detections_list_every_object_from_left_to_right(
    many: list[Scene], drawn_examples: list[list[Example]]
) -> None:
    for scene, drawn in zip(many, drawn_examples, strict=True):
        for example in drawn:
            if example.kind == "detect":
                check_detection(scene, example)


def check_detection(scene: Scene, example: Example) -> None:
    labels = example.prefix.removeprefix("detect ").split(" ; ")
    found = [(label, [int(n) for n in corners]) for *corners, label in BOX.findall(example.suffix)]
    assert example.suffix.count("<loc") == 4 * len(found)
    expected = []
    for label in labels:
        words = set(label.split()) - {"shape"}
        fitting = [
            box
            for drawn, box in zip(scene.objects, scene.boxes, strict=True)
            if words <= {drawn.colour, drawn.shape}
        ]
        fitting.sort(key=lambda box: box.xmin)
        expected += [(label, [box.ymin, box.xmin, box.ymax, box.xmax]) for box in fitting]
    assert [label for label, _ in found] == [label for label, _ in expected]
    for (_, corners), (_, sides) in zip(found, expected, strict=True):
        assert all(0 <= n <= 1023 for n in corners)
        assert corners[0] < corners[2]
        assert corners[1] < corners[3]
        assert corners == pytest.approx([side * 1023 for side in sides], abs=0.5)


def test_y_comes_before_x() -> None:
    scene = next(
        s for s in map(Scene.from_seed, range(99)) if s.boxes[0].xmin > 2 * s.boxes[0].ymin
    )
    drawn, box = scene.objects[0], scene.boxes[0]
    top, left = re.findall(
        r"\d{4}", detection_example([(drawn.shape, drawn.colour)], scene).suffix
    )[:2]
    if Counter((t.shape, t.colour) for t in scene.objects)[drawn.shape, drawn.colour] == 1:
        assert (int(top), int(left)) == (round(box.ymin * 1023), round(box.xmin * 1023))


def test_a_fifth_to_a_quarter_of_detections_are_empty(drawn_examples: list[list[Example]]) -> None:
    assert 0.17 < share(answers(drawn_examples, "detect"), "") < 0.25


def test_yes_and_no_are_equally_frequent(drawn_examples: list[list[Example]]) -> None:
    for kind in ("exists", "side"):
        assert answers(drawn_examples, kind).keys() == {"yes", "no"}
        assert 0.45 < share(answers(drawn_examples, kind), "yes") < 0.55


@pytest.mark.parametrize(
    ("kind", "least", "number"),
    [("count", 0.10, 5), ("colour", 0.10, 7), ("shape", 0.15, 5), ("where", 0.2, 4)],
)
def test_every_answer_is_frequent(
    drawn_examples: list[list[Example]], kind: str, least: float, number: int
) -> None:
    counted = answers(drawn_examples, kind)
    assert len(counted) == number
    assert min(share(counted, answer) for answer in counted) > least, counted


def test_count_questions_are_answered_right(
    many: list[Scene], drawn_examples: list[list[Example]]
) -> None:
    for scene, drawn in zip(many, drawn_examples, strict=True):
        for example in (example for example in drawn if example.kind == "count"):
            words = words_of(example.prefix)
            assert int(example.suffix) == sum(
                words <= {t.shape, t.colour} for t in scene.objects
            ), example


def test_side_questions_are_answered_right(
    many: list[Scene], drawn_examples: list[list[Example]]
) -> None:
    checked = Counter()
    for scene, drawn in zip(many, drawn_examples, strict=True):
        for example in (example for example in drawn if example.kind in ("where", "side")):
            pair = question_objects(scene, example.prefix)
            if pair is None:
                continue
            a, b = (scene.boxes[scene.objects.index(drawn)] for drawn in pair)
            right, down = a.xmin + a.xmax - b.xmin - b.xmax, a.ymin + a.ymax - b.ymin - b.ymax
            sideways = abs(right) > abs(down)
            true = ("left", "right")[right > 0] if sideways else ("above", "below")[down > 0]
            if example.kind == "where":
                assert example.suffix == true, example
            else:
                prefix = example.prefix.replace("higher than", "above")
                named = next(side for side, words in SIDES.items() if words in prefix)
                assert example.suffix == ("yes" if named == true else "no"), example
            checked[example.kind] += 1
    assert min(checked["where"], checked["side"]) > 500


SIDES = {
    "left": " left of ",
    "right": " right of ",
    "above": " above ",
    "below": " below ",
}


def question_objects(scene: Scene, prefix: str) -> list[scenes.SceneObject] | None:
    """The two objects of a question, or None if this test cannot parse it."""
    prefix = prefix.lower().replace("higher than", "above")
    if "on which side" in prefix or "under" in prefix or "lower" in prefix:
        return None
    names = re.findall(r"the ((?:\w+ )?\w+)", prefix)
    words = [set(name.split()) & {*SHAPES, *COLOURS} for name in names]
    objects = [drawn for named in words if (drawn := only(scene, named))]
    return objects if len(objects) == 2 else None


def only(scene: Scene, words: set[str]) -> scenes.SceneObject | None:
    fitting = [t for t in scene.objects if words and words <= {t.shape, t.colour}]
    return fitting[0] if len(fitting) == 1 else None


def test_existence_questions_are_answered_right(
    many: list[Scene], drawn_examples: list[list[Example]]
) -> None:
    for scene, drawn in zip(many, drawn_examples, strict=True):
        for example in (example for example in drawn if example.kind == "exists"):
            words = words_of(example.prefix)
            is_present = any(words <= {t.shape, t.colour} for t in scene.objects)
            assert example.suffix == ("yes" if is_present else "no"), example


def test_colours_and_shapes_are_those_of_the_object(
    many: list[Scene], drawn_examples: list[list[Example]]
) -> None:
    for scene, drawn in zip(many, drawn_examples, strict=True):
        for example in (example for example in drawn if example.kind in ("colour", "shape")):
            words = words_of(example.prefix)
            fitting = [t for t in scene.objects if words <= {t.shape, t.colour}]
            values = {t.colour if example.kind == "colour" else t.shape for t in fitting}
            assert values == {example.suffix}, example


def words_of(prefix: str) -> set[str]:
    """The shape and the colour in a question."""
    words = {word.removesuffix("s") for word in re.findall(r"[a-z]+", prefix.lower())}
    words = {"cross" if word in ("crosse", "cros") else word for word in words}
    return words & {*SHAPES, *COLOURS}


def test_eval_examples_have_a_caption_and_three_detections(many: list[Scene]) -> None:
    for scene in many[:200]:
        kinds = Counter(example.kind for example in eval_examples(scene))
        assert kinds["caption"] == 1
        assert kinds["detect"] == 3
        assert kinds["count"] == kinds["exists"] == kinds["background"] == 1
        assert eval_examples(scene)[-3].suffix


# The example images


@pytest.fixture(scope="module")
def example() -> dict[str, int]:
    spec = importlib.util.spec_from_file_location("make_images", EXAMPLES / "make_images.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {name: scenes.EXAMPLE_SEEDS[offset] for name, offset in module.IMAGES.items()}


def test_example_images_are_their_scenes_when_upright(example: dict[str, int]) -> None:
    assert {path.name for path in (EXAMPLES / "images").iterdir()} == set(example)
    turned = []
    for name, seed in example.items():
        path = EXAMPLES / "images" / name
        assert path.stat().st_size < 40_000
        stored = Image.open(path)
        turned += [name] if stored.getexif().get(0x0112, 1) != 1 else []
        drawn = numpy.asarray(render(Scene.from_seed(seed))).astype(int)
        upright = numpy.asarray(ImageOps.exif_transpose(stored).convert("RGB")).astype(int)
        assert numpy.abs(upright - drawn).mean() < 2
    assert len(turned) == 1
