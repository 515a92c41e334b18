"""The scenes: equal for equal seeds, with right and balanced examples."""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
from pathlib import Path
from random import Random

import numpy
import pytest
from PIL import Image, ImageOps

from examples.demo_model import scenes
from examples.demo_model.examples import (
    draw_examples,
    eval_examples,
)
from examples.demo_model.scenes import Scene, render, scaled_size

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


def test_no_seed_has_two_purposes() -> None:
    ranges = [value for name, value in vars(scenes).items() if name.endswith("_SEEDS")]
    assert len(ranges) == 5
    for a, b in itertools.combinations(ranges, 2):
        assert a[-1] < b[0] or b[-1] < a[0]


def test_scenes_are_those_of_the_built_in_models_training() -> None:
    # with another hash, the built-in model must be trained again
    assert golden(range(100)) == "f28e74a22504d77b"


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
