"""The built-in two towers: their files, transformers on them, and what they know."""

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from safetensors import safe_open

from benchmarks.towers_quality import encode
from examples.demo_model.questions import caption
from examples.demo_model.scenes import EVAL_SEEDS, Scene, render
from pgcli.checkpoints.find import BUILTIN_TOWERS, DEMO_TOWERS, find
from pgcli.towers.engine import EmbeddingEngine, open_towers
from tests.support.runs import EXAMPLES

DRAWINGS = 60
ATOL = 1e-5


@pytest.fixture(scope="module")
def engine() -> EmbeddingEngine:
    return open_towers(find(DEMO_TOWERS), device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    return [Scene.from_seed(seed) for seed in EVAL_SEEDS[:DRAWINGS]]


def test_files_are_small_and_in_bfloat16():
    assert sum(file.stat().st_size for file in BUILTIN_TOWERS.iterdir()) < 12 * 2**20
    with safe_open(BUILTIN_TOWERS / "model.safetensors", framework="pt") as stored:
        assert {stored.get_slice(name).get_dtype() for name in stored.keys()} == {"BF16"}  # noqa: SIM118


def test_transformers_loads_them_and_agrees(engine):
    model, info = transformers.SiglipModel.from_pretrained(
        BUILTIN_TOWERS, output_loading_info=True, dtype=torch.float32
    )
    assert not any(info.values()), info
    processor = transformers.AutoProcessor.from_pretrained(BUILTIN_TOWERS, backend="pil")
    texts = ["a red star", "two blue squares on a white background"]
    with Image.open(EXAMPLES / "one.png") as image:
        inputs = processor(
            text=texts,
            images=[image.convert("RGB")],
            padding="max_length",
            max_length=32,
            return_tensors="pt",
        )
    with torch.inference_mode():
        found = model.eval()(input_ids=inputs.input_ids, pixel_values=inputs.pixel_values)
        assert engine.model.logits is not None
        ours = engine.model.encode_images(inputs.pixel_values)  # type: ignore[operator]
    torch.testing.assert_close(found.image_embeds, ours, atol=ATOL, rtol=0)
    text_ND = torch.from_numpy(engine.encode_texts(texts))
    torch.testing.assert_close(found.text_embeds, text_ND, atol=ATOL, rtol=0)


def test_drawings_and_captions_find_each_other(engine, scenes):
    """The bound is far below what benchmarks/towers_quality.py measures; it detects damage."""
    image_ND = encode(engine, map(render, scenes))
    cosine = image_ND @ engine.encode_texts([*map(caption, scenes)]).T
    same = np.array([[caption(one) == caption(other) for other in scenes] for one in scenes])
    rows = np.arange(len(scenes))
    assert same[rows, cosine.argmax(1)].mean() > 0.9
    assert same[cosine.argmax(0), rows].mean() > 0.9
