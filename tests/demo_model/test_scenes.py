"""The scenes: equal for equal seeds, with right and balanced examples."""

import hashlib
from pathlib import Path
from random import Random

import numpy
import pytest
from PIL import Image, ImageOps

from examples.demo_model import scenes
from examples.demo_model.questions import draw_examples, eval_examples
from examples.demo_model.scenes import Scene, lettered_scene, render

EXAMPLES = Path(__file__).parents[2] / "examples"


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


def test_scenes_are_those_of_the_built_in_models_training():
    # with another hash, the built-in model must be trained again
    assert golden(range(100)) == "f28e74a22504d77b"


@pytest.mark.parametrize("longer", [None, 200])
def test_boxes_bound_the_drawn_pixels(longer):
    for seed in range(150):
        scene = Scene.from_seed(seed)
        if len(scene.objects) > 1:
            continue
        pixels = numpy.asarray(render(scene, longer)).astype(int)
        far = numpy.abs(pixels - numpy.array(scene.background_rgb)).max(axis=2) > 24
        ys, xs = numpy.nonzero(far)
        drawn = (xs.min(), ys.min(), xs.max() + 1, ys.max() + 1)
        box = scene.boxes[0]
        height, width = far.shape
        expected = (box.xmin * width, box.ymin * height, box.xmax * width, box.ymax * height)
        assert max(abs(a - b) for a, b in zip(drawn, expected, strict=True)) <= 1.2, seed


#: The example images, and those of words, with their places in EXAMPLE_SEEDS.
IMAGES = {
    "one.png": 84,
    "alike.png": 4,
    "blue.png": 83,
    "crosses.png": 77,
    "dusk.jpg": 63,
    "few.jpg": 82,
    "grey.png": 73,
    "night.jpg": 68,
    "pair.png": 76,
    "stars.jpg": 87,
    "tall.jpg": 51,
    "turned.jpg": 64,
}
WORDS = {"bold.png": 13, "long.png": 18, "plain.png": 8, "serif.png": 5}


@pytest.mark.parametrize(
    ("folder", "places", "draw"),
    [("images", IMAGES, Scene.from_seed), ("words", WORDS, lettered_scene)],
)
def test_example_images_are_their_scenes_when_upright(folder, places, draw):
    """One is stored rotated, with an EXIF orientation, as phones store images."""
    assert {path.name for path in (EXAMPLES / folder).iterdir()} == set(places)
    turned = []
    for name, place in places.items():
        path = EXAMPLES / folder / name
        assert path.stat().st_size < 40_000
        stored = Image.open(path)
        turned += [name] if stored.getexif().get(0x0112, 1) != 1 else []
        drawn = numpy.asarray(render(draw(scenes.EXAMPLE_SEEDS[place]))).astype(int)
        upright = numpy.asarray(ImageOps.exif_transpose(stored).convert("RGB")).astype(int)
        assert numpy.abs(upright - drawn).mean() < 2
    assert turned == (["turned.jpg"] if folder == "images" else [])
