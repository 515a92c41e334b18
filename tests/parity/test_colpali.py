"""ColPali: the same random weights in transformers give the same vectors, ids and scores."""

import json

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from pgcli.checkpoints.find import Checkpoint
from pgcli.errors import InvalidCheckpoint, UsageError
from pgcli.images import ImageLimits, decode
from pgcli.records import Item
from pgcli.towers.pages import open_encoder
from tests.support.tiny import PATCHES
from tests.support.tiny_colpali import (
    LAYOUTS,
    RESOLUTION,
    processor,
    write_adapter,
    write_hf,
    write_layout,
)

QUESTIONS = ["what is the revenue of 2023?", "a", "Ünïcode, <pad> and <image>"]
EXACT = 1e-5


@pytest.fixture(scope="module")
def hf_folder(tmp_path_factory):
    return write_hf(tmp_path_factory.mktemp("colpali") / "hf")


def engine_of(folder, **options):
    return open_encoder(Checkpoint("tiny", folder), device="cpu", **options)


def pages(count=3):
    rng = np.random.default_rng(0)
    return [
        Image.fromarray(rng.integers(0, 256, (40 + 30 * n, 90, 3), np.uint8)) for n in range(count)
    ]


def vectors_of(engine, images):
    decoded = []
    for number, image in enumerate(images):
        image.save(f"{number}.png")
        item = Item(number, "", "", f"{number}.png")
        decoded.append(decode(item, engine.spec, ImageLimits()))
    return [encoded.vector for _, encoded in engine.encode(enumerate(decoded))]


def expected_pages(folder, images):
    """transformers' vectors of its own processor's inputs."""
    model = transformers.ColPaliForRetrieval.from_pretrained(folder).eval()
    inputs = processor(folder).process_images(images)
    inputs.pop("labels")
    with torch.inference_mode():
        return model(**inputs).embeddings.numpy()


def expected_questions(folder, questions):
    model = transformers.ColPaliForRetrieval.from_pretrained(folder).eval()
    inputs = processor(folder).process_queries(questions)
    with torch.inference_mode():
        output = model(**inputs).embeddings.numpy()
    return [v[m.bool().numpy()] for v, m in zip(output, inputs["attention_mask"], strict=True)]


@pytest.mark.parametrize("batch_size", [1, 2, 8])
def test_vectors_of_pages_are_equal_in_every_batch(hf_folder, batch_size):
    engine = engine_of(hf_folder, batch_size=batch_size)
    images = pages()
    own, expected = vectors_of(engine, images), expected_pages(hf_folder, images)
    assert expected.shape[1] > PATCHES
    for mine, other in zip(own, expected, strict=True):
        np.testing.assert_allclose(mine, other, rtol=0, atol=EXACT)


def test_vectors_of_questions_of_unequal_lengths_are_equal(hf_folder):
    """transformers pads them, pgcli encodes each alone."""
    questions = QUESTIONS[:2]
    own = engine_of(hf_folder).encode_questions(questions)
    for mine, other in zip(own, expected_questions(hf_folder, questions), strict=True):
        np.testing.assert_allclose(mine, other, rtol=0, atol=EXACT)


def test_ids_are_those_of_the_processor(hf_folder):
    engine, hf_processor = engine_of(hf_folder), processor(hf_folder)
    for question in ("what is the revenue of 2023?", "a", "Ünïcode"):
        ids = hf_processor.process_queries([question])["input_ids"][0].tolist()
        assert engine.question_ids(question) == ids
    ids = hf_processor.process_images(pages(1))["input_ids"][0].tolist()
    assert engine.page_ids == ids[PATCHES:]


def test_typed_tokens_stay_text(hf_folder):
    engine = engine_of(hf_folder)
    pad = engine._tokenizer.id("<pad>")
    assert engine.question_ids("a <pad> b").count(pad) == 10


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_has_the_same_vectors(hf_folder, layout, tmp_path):
    folder = write_layout(tmp_path / "model", layout)
    own = engine_of(folder).encode_questions(QUESTIONS)
    for mine, other in zip(own, engine_of(hf_folder).encode_questions(QUESTIONS), strict=True):
        np.testing.assert_array_equal(mine, other)
    np.testing.assert_array_equal(
        vectors_of(engine_of(folder), pages(1))[0], vectors_of(engine_of(hf_folder), pages(1))[0]
    )


@pytest.mark.parametrize("published", [True, False])
def test_an_adapter_on_its_base_gives_the_vectors_of_peft(published, tmp_path):
    base = write_layout(tmp_path / "base", "merged")
    adapted = write_adapter(tmp_path / "adapter", published=published)
    engine = engine_of(base, adapter=Checkpoint("adapter", tmp_path / "adapter"))
    for question, mine in zip(QUESTIONS, engine.encode_questions(QUESTIONS), strict=True):
        ids = torch.tensor([engine.question_ids(question)])
        with torch.inference_mode():
            other = adapted(input_ids=ids, attention_mask=torch.ones_like(ids))[0].numpy()
        np.testing.assert_allclose(mine, other, rtol=0, atol=EXACT)
    assert not np.allclose(mine, engine_of(base).encode_questions(QUESTIONS)[-1], atol=1e-2)
    assert engine.label == "tiny+adapter"


@pytest.mark.parametrize("layout", ["hf", "merged"])
def test_a_missing_projection_is_refused(layout, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = write_layout(tmp_path / "model", layout)
    file, projection = folder / "model.safetensors", LAYOUTS[layout][3]
    tensors = {name: t for name, t in load_file(file).items() if not name.startswith(projection)}
    save_file(tensors, file)
    with pytest.raises(InvalidCheckpoint, match=f"{projection}(weight|bias) is missing"):
        engine_of(folder)


def test_the_prompt_form_of_the_processor_is_used(tmp_path):
    folder = write_hf(tmp_path / "model")
    texts = {"visual_prompt_prefix": "Look.", "query_prefix": "Query: "}
    (folder / "processor_config.json").write_text(json.dumps(texts))
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    (folder / "processor_config.json").write_text(json.dumps(texts | {"image_processor": settings}))
    engine = engine_of(folder)
    assert engine.form == ("Look.", "Query: ")
    (folder / "processor_config.json").write_text(
        json.dumps({"query_prefix": 3, "image_processor": settings})
    )
    with pytest.raises(InvalidCheckpoint, match="query_prefix is 3"):
        engine_of(folder)


def test_bfloat16_is_near_and_float16_is_refused(hf_folder):
    exact = engine_of(hf_folder).encode_questions(QUESTIONS[:1])[0]
    near = engine_of(hf_folder, dtype="bfloat16").encode_questions(QUESTIONS[:1])[0]
    assert 1e-6 < np.abs(near - exact).max() < 0.1
    with pytest.raises(UsageError, match="float16 is not tested for ColPali"):
        engine_of(hf_folder, dtype="float16")


def test_adapters_of_other_encoders_are_refused():
    from pgcli.checkpoints.find import find

    with pytest.raises(UsageError, match="needs ColPali"):
        open_encoder(find("demo-towers"), adapter=Checkpoint("a", None), device="cpu")


def test_image_resolution_is_the_models(hf_folder):
    assert engine_of(hf_folder).spec.resolution == RESOLUTION
