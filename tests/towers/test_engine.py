"""Images and texts get the same vectors as in transformers, whatever the batch."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from pgcli.checkpoints.config import read_description, read_image_spec
from pgcli.checkpoints.find import Checkpoint
from pgcli.checkpoints.save import save_encoder
from pgcli.errors import NoUsableDevice, UsageError
from pgcli.images import ImageLimits, decode
from pgcli.images.decode import encode_image
from pgcli.model.cpu.linear_kernels import PackedLinearKernel
from pgcli.model.cpu.optimize import PackedMLP
from pgcli.model.cpu.processor import works
from pgcli.records import DecodedImage, Item
from pgcli.towers import engine
from pgcli.towers.engine import EmbeddingEngine, open_towers
from pgcli.training.encoders import classifier_of
from tests.support import tiny, towers

TEXTS = ["A small, red star!", "a blue circle", "a GREEN triangle"]
CLASSES = {
    "siglip": "SiglipModel",
    "siglip2": "SiglipModel",
    "clip": "CLIPModel",
    "siglip_vision_model": "SiglipVisionModel",
    "vit": "ViTForImageClassification",
    "siglip_classifier": "SiglipForImageClassification",
    "clip_classifier": "CLIPForImageClassification",
}


@pytest.fixture(scope="module", params=towers.KINDS)
def kind(request) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(kind, tmp_path_factory) -> Path:
    return towers.checkpoint_into(tmp_path_factory.mktemp(kind), kind)


def engine_of(folder: Path, batch_size: int = 3) -> EmbeddingEngine:
    return open_towers(Checkpoint("tiny", folder), device="cpu", batch_size=batch_size)


def photos(count: int = 7) -> list[Image.Image]:
    """Images of noise, upright and wide."""
    noise = np.random.default_rng(0)
    sizes = [(30 + 9 * n, 90 - 11 * n, 3) for n in range(count)]
    return [Image.fromarray(noise.integers(0, 256, size, np.uint8)) for size in sizes]


def decoded(engine: EmbeddingEngine, images: list[Image.Image]) -> Iterator[tuple[int, Any]]:
    """The stream for an engine, with every second row index missing."""
    for number, image in enumerate(images):
        item = Item(number, str(number), "", data=encode_image(image))
        yield 2 * number, decode(item, engine.spec, ImageLimits())


def vectors(engine: EmbeddingEngine, images: list[Image.Image]) -> torch.Tensor:
    rows = list(engine.encode(decoded(engine, images)))
    assert [row for row, _ in rows] == [2 * number for number in range(len(images))]
    return torch.from_numpy(np.stack([one.vector for _, one in rows if one.vector is not None]))


@torch.inference_mode()
def expected_vectors(
    kind: str, folder: Path, images: list[Image.Image], side: int = towers.TINY_IMAGE["image_size"]
) -> torch.Tensor:
    """transformers' embeddings of length 1, or logits, from its own image processor."""
    model = getattr(transformers, CLASSES[kind]).from_pretrained(folder).eval()
    processor = towers.image_processor(kind, side)
    pixels = processor(images, return_tensors="pt")["pixel_values"]
    if kind in ("siglip", "siglip2", "clip"):
        out = model.get_image_features(pixel_values=pixels).pooler_output
    elif kind == "siglip_vision_model":
        out = model(pixels).pooler_output
    else:
        return model(pixels).logits
    return torch.nn.functional.normalize(out, dim=-1)


def test_vectors_equal_transformers_in_any_batch(kind, folder):
    images = photos()
    expected = expected_vectors(kind, folder, images)
    assert expected.std(dim=0).mean() > 1e-3, "all vectors are alike"
    for batch_size in (1, 7):
        found = vectors(engine_of(folder, batch_size), images)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_images_are_decoded_for_the_model_before_it_is_loaded(folder):
    assert read_image_spec(folder) == engine_of(folder).spec


def test_classifiers_have_labels(kind, folder):
    engine = engine_of(folder)
    is_classifier = kind == "vit" or kind.endswith("_classifier")
    assert (engine.kind == "classifier") == is_classifier
    assert engine.labels == (("circle", "square", "star") if is_classifier else ())


@pytest.fixture(scope="module")
def siglip(tmp_path_factory) -> Path:
    return towers.checkpoint_into(tmp_path_factory.mktemp("siglip"), "siglip")


def test_paligemma_embeds_images_by_the_mean_of_their_patches(tmp_path):
    folder = tiny.checkpoint_into(tmp_path)
    engine, images = engine_of(folder), photos()
    assert engine.kind == "paligemma"
    reference = transformers.PaliGemmaForConditionalGeneration.from_pretrained(folder).eval()
    pixels = [one.pixels for _, one in decoded(engine, images)]
    normalized = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).float() / 127.5 - 1
    with torch.inference_mode():
        patches = reference.model.vision_tower(normalized).last_hidden_state
    expected = torch.nn.functional.normalize(patches.mean(dim=1), dim=-1)
    torch.testing.assert_close(vectors(engine, images), expected, atol=1e-5, rtol=0)


def test_models_without_a_text_tower_reject_texts(tmp_path):
    engine = engine_of(towers.checkpoint_into(tmp_path, "vit"))
    with pytest.raises(UsageError, match="tiny has no text tower"):
        engine.encode_texts(TEXTS)


def test_each_distinct_text_is_encoded_once(siglip, monkeypatch):
    engine = engine_of(siglip, batch_size=2)
    encoded = []
    encode_texts = engine.model.encode_texts
    monkeypatch.setattr(
        engine.model, "encode_texts", lambda t: (encoded.append(len(t)), encode_texts(t))[1]
    )
    found = engine.encode_texts([*TEXTS, *TEXTS, "a blue circle"])
    assert encoded == [2, 1]
    assert (found[:3] == found[3:6]).all()
    assert (found[6] == found[1]).all()
    assert engine.encode_texts([]).shape == (0, 48)


def test_scores_are_logits_of_the_pairs(siglip):
    engine = engine_of(siglip)
    cosine = vectors(engine, photos()).numpy() @ engine.encode_texts(TEXTS).T
    np.testing.assert_allclose(engine.scores(cosine), np.exp(2) * cosine - 3, rtol=1e-5)
    assert engine.has_sigmoid


# --- probes


@pytest.mark.parametrize("kind", ["siglip", "clip", "siglip_vision_model", "vit", "paligemma"])
def test_probe_of_any_tower_is_read_by_both_programs(tmp_path, kind):
    """A vision tower with a linear layer is a classifier that transformers reads too."""
    make = tiny.checkpoint_into if kind == "paligemma" else towers.checkpoint_into
    folder, out = tmp_path / "tower", tmp_path / "probe"
    make(folder, **({} if kind == "paligemma" else {"kind": kind}))
    description = read_description(folder)
    labels = ("cat", "dog", "bird")
    probe = classifier_of(folder, description, labels, torch.device("cpu"))
    with torch.no_grad():
        # large weights would amplify rounding, like the tiny PaliGemma's
        probe.classifier.weight.normal_(std=0.05)
        probe.classifier.bias.normal_()
    out.mkdir()
    save_encoder(probe, out, dtype=torch.float32)
    processor = towers.image_processor(kind, description.vision.resolution)
    processor.save_pretrained(out)
    engine, images = engine_of(out), photos(3)
    assert (engine.kind, engine.labels) == ("classifier", labels)
    found = vectors(engine, images)
    reference = transformers.AutoModelForImageClassification.from_pretrained(out).eval()
    with torch.inference_mode():
        expected = reference(processor(images, return_tensors="pt")["pixel_values"]).logits
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert found.std(dim=0).min() > 1e-3
    assert [reference.config.id2label[number] for number in range(3)] == [*labels]


# --- memory


def limited(
    engine: EmbeddingEngine,
    fits: Callable[[list[tuple[int, DecodedImage]]], bool],
    monkeypatch: Any,
) -> list[int]:
    """Make batches of images run out of memory above a size; the sizes of the tried batches."""
    tried: list[int] = []
    encode = engine._encode_rows

    def encode_rows(batch: list[tuple[int, DecodedImage]]) -> Any:
        tried.append(len(batch))
        if not fits(batch):
            raise torch.OutOfMemoryError
        return encode(batch)

    monkeypatch.setattr(engine, "_encode_rows", encode_rows)
    return tried


def test_batches_are_halved_when_memory_runs_out(siglip, monkeypatch):
    images, engine = photos(), engine_of(siglip, batch_size=7)
    expected = vectors(engine, images)
    tried = limited(engine, lambda batch: len(batch) <= 2, monkeypatch)
    torch.testing.assert_close(vectors(engine, images), expected, atol=1e-5, rtol=0)
    assert tried == [7, 3, 1, 1, 1, 1, 1, 1, 1]


def test_image_that_does_not_fit_alone_is_an_error(siglip, monkeypatch):
    engine = engine_of(siglip)
    limited(engine, lambda batch: 4 not in dict(batch), monkeypatch)
    rows = list(engine.encode(decoded(engine, photos(4))))
    lost = [(row, one.vector is None) for row, one in rows]
    assert lost == [(0, False), (2, False), (4, True), (6, False)]


def test_no_image_fits_into_memory(siglip, monkeypatch):
    engine = engine_of(siglip)
    limited(engine, lambda batch: False, monkeypatch)
    with pytest.raises(NoUsableDevice, match="no memory left for even one row"):
        list(engine.encode(decoded(engine, photos())))


def test_no_batch_begins_after_a_stop(siglip):
    engine = engine_of(siglip, batch_size=2)
    answered: list[int] = []
    stream = list(decoded(engine, photos()))
    for row, _ in engine.encode(stream, should_stop=lambda: len(answered) >= 2):
        answered.append(row)
    assert answered == [0, 2]


@pytest.mark.parametrize("kind", ["siglip", "clip", "vit"])
def test_packed_weights_change_rounding_only(kind, tmp_path, monkeypatch):
    """On a CPU the layers of both towers are packed, with any activation."""
    folder = towers.checkpoint_into(tmp_path, kind)
    packed = engine_of(folder)
    monkeypatch.setattr(engine, "optimize_encoders_for_cpu", lambda model: None)
    plain, images = engine_of(folder), photos(2)
    found, expected = (vectors(engine, images) for engine in (packed, plain))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    if works(PackedLinearKernel, torch.float32):
        assert isinstance(packed.model.vision.layers[0].mlp, PackedMLP)
        text = getattr(packed.model, "text", None)
        assert text is None or isinstance(text.layers[0].mlp, PackedMLP)
