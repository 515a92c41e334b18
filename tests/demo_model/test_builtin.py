"""The built-in model: right on unseen drawings, equal in transformers and at any batch size."""

from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
import torch
import transformers
from PIL import Image
from safetensors import safe_open

import pgcli
from benchmarks.demo_quality import answered as answered_files
from benchmarks.demo_quality import characters_read, measured, segmentation
from examples.demo_model.questions import eval_examples, ocr_example
from examples.demo_model.scenes import EVAL_SEEDS, Scene, lettered_scene, render
from pgcli.checkpoints.find import BUILTIN, DEMO, find
from pgcli.engine.loader import open_engine
from pgcli.images import ImageSpec
from pgcli.images.formats import TRANSPOSE
from pgcli.records import Answer, DecodedImage, Item
from pgcli.tasks import Question

SCENES = 200
NEW_TOKENS = 40
ONE = Path(__file__).parents[2] / "examples" / "images" / "one.png"
Drawn = tuple[Image.Image, str, str]


@pytest.fixture(scope="module")
def drawn() -> list[Drawn]:
    """Drawings outside the training data, each with a prompt and its answer, kinds in turn."""
    drawn = []
    for seed in EVAL_SEEDS[:SCENES]:
        scene = Scene.from_seed(seed)
        examples = eval_examples(scene)
        example = examples[seed % len(examples)]
        drawn.append((render(scene), example.prefix, example.suffix))
    return drawn


def decoded_images(drawn: list[Drawn], spec: ImageSpec) -> Iterator[tuple[int, DecodedImage]]:
    size = (spec.resolution, spec.resolution)
    for index, (image, prompt, _) in enumerate(drawn):
        item = Item(index, str(index), f"{index}.png", prompts=(prompt,))
        pixels = numpy.array(image.resize(size, Image.Resampling(spec.resample)))
        yield index, DecodedImage(item, *image.size, pixels, 0.0)


def answered(drawn: list[Drawn], batch_size: int) -> list[Answer]:
    engine = open_engine(find(DEMO), device="cpu", dtype="float32", batch_size=batch_size)
    images = decoded_images(drawn, engine.spec)
    answers = dict(engine.ask(images, Question("ask", None, NEW_TOKENS)))
    return [answers[index] for index in range(len(drawn))]


@pytest.fixture(scope="module")
def ours(drawn) -> list[Answer]:
    return answered(drawn, 64)


@pytest.mark.slow
@torch.inference_mode()
def test_transformers_gives_the_same_answers(drawn, ours):
    processor = transformers.AutoProcessor.from_pretrained(BUILTIN, backend="pil")
    model = transformers.PaliGemmaForConditionalGeneration.from_pretrained(
        BUILTIN, dtype=torch.float32
    ).eval()
    for start in range(0, len(drawn), 50):
        some = drawn[start : start + 50]
        inputs = processor(
            text=["<image>" + prompt for _, prompt, _ in some],
            images=[image for image, _, _ in some],
            padding=True,
            return_tensors="pt",
        )
        inputs["token_type_ids"] = torch.zeros_like(inputs["input_ids"])
        ids = model.generate(**inputs, max_new_tokens=NEW_TOKENS, do_sample=False)
        new = ids[:, inputs["input_ids"].shape[1] :]
        texts = processor.batch_decode(new, skip_special_tokens=True)
        for text, row in zip(texts, ours[start : start + 50], strict=True):
            assert row.answer == text.strip()


def test_the_answers_are_right(drawn, ours):
    """The bound is far below what benchmarks/demo_quality.py measures; it detects damage."""
    pairs = [(row.answer, truth) for row, (_, _, truth) in zip(ours, drawn, strict=True)]
    words = [(answer, truth) for answer, truth in pairs if "<loc" not in truth]
    assert sum(answer == truth for answer, truth in words) / len(words) > 0.85


def test_masks_are_those_of_the_shapes():
    scenes = [Scene.from_seed(seed) for seed in EVAL_SEEDS[:24]]
    engine = open_engine(find(DEMO), device="cpu", batch_size=24)
    rows = answered_files(engine, "segment", scenes, [[segmentation(one)] for one in scenes])
    assert measured("miou", rows)["miou"] > 0.75


def test_words_are_read():
    scenes = [lettered_scene(seed) for seed in EVAL_SEEDS[:24]]
    engine = open_engine(find(DEMO), device="cpu", batch_size=24)
    rows = answered_files(engine, "ocr", scenes, [[ocr_example(one)] for one in scenes])
    assert characters_read(rows) > 0.85


def test_the_checkpoint_is_small_and_in_bfloat16():
    assert sum(file.stat().st_size for file in BUILTIN.iterdir()) < 20 * 2**20
    with safe_open(BUILTIN / "model.safetensors", framework="pt") as stored:
        assert {stored.get_slice(name).get_dtype() for name in stored.keys()} == {"BF16"}  # noqa: SIM118


def test_boxes_are_those_of_the_upright_image(tmp_path):
    """A PNG stored in each of the eight EXIF orientations has the same boxes."""
    inverse = TRANSPOSE | {6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270}
    with Image.open(ONE) as opened:
        upright = opened.convert("RGB")
    names = []
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        stored = upright.transpose(inverse[orientation]) if orientation > 1 else upright
        names.append(tmp_path / f"{orientation}.png")
        stored.save(names[-1], exif=exif)
    engine = pgcli.load(DEMO, device="cpu", dtype="float32")
    rows = list(engine.detect(list(map(str, names)), ["circle", "square", "triangle", "star"]))
    assert {(row.width, row.height) for row in rows} == {upright.size}
    first = rows[0].boxes
    assert first
    for row in rows[1:]:
        assert [box.label for box in row.boxes] == [box.label for box in first]
        for box, same in zip(row.boxes, first, strict=True):
            assert (box.xmin, box.ymin, box.xmax, box.ymax) == (
                *(same.xmin, same.ymin, same.xmax, same.ymax),
            )
