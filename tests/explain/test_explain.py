"""`pgcli explain`: attention is that of the model, shapes are those of its tensors."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from PIL import Image

from pgcli import tasks
from pgcli.checkpoints.find import Checkpoint
from pgcli.engine import model_runner
from pgcli.engine.engine import InferenceEngine
from pgcli.engine.loader import load
from pgcli.errors import UsageError
from pgcli.explain.explain import MAX_LAYERS, Explanation, choose_layers, explain
from pgcli.explain.recorder import VISION, attention_weights
from pgcli.images import ImageLimits, decode
from pgcli.records import DecodedImage, Item

PROMPT = "what colour is the star?"
TOKENS = 5


def image_for(engine: InferenceEngine, folder: Path, prompt: str = PROMPT) -> DecodedImage:
    file = folder / "one.png"
    Image.effect_noise((40, 30), 90).convert("RGB").save(file)
    item = Item(0, "one.png", str(file), path=str(file), prompts=(prompt,))
    return decode(item, engine.spec, ImageLimits())


@pytest.fixture(params=["tiny", "tiny2"])
def made(
    request: pytest.FixtureRequest, tmp_path: Path
) -> tuple[Path, InferenceEngine, DecodedImage, Explanation]:
    """A checkpoint of either generation, and the explanation of its answer."""
    folder = request.getfixturevalue(request.param)
    engine = load(Checkpoint("tiny", folder), device="cpu", dtype="float32", batch_size=1)
    image = image_for(engine, tmp_path)
    question = tasks.ask([PROMPT], max_new_tokens=TOKENS)
    return folder, engine, image, explain(engine, image, question)


def test_every_row_of_attention_sums_to_1(
    made: tuple[Path, InferenceEngine, DecodedImage, Explanation],
) -> None:
    _, engine, _, explanation = made
    assert explanation.layers == tuple(range(engine.model.config.decoder.depth))
    prefix = engine.model.config.image_tokens + len(explanation.prompt_tokens)
    for number, token in enumerate(explanation.tokens):
        for weights_S in token.attention:
            assert weights_S.shape == (prefix + number,)
            assert weights_S.dtype == torch.float32
            assert weights_S.sum().item() == pytest.approx(1, abs=1e-5)
            assert weights_S.min() >= 0


def test_outputs_that_follow_from_the_weights_are_the_models_own(
    made: tuple[Path, InferenceEngine, DecodedImage, Explanation],
) -> None:
    *_, explanation = made
    assert 0 < explanation.difference < 1e-5


def test_attention_equals_that_of_transformers(
    made: tuple[Path, InferenceEngine, DecodedImage, Explanation],
) -> None:
    from transformers import PaliGemmaForConditionalGeneration

    folder, engine, image, explanation = made
    model = PaliGemmaForConditionalGeneration.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32
    ).eval()
    assert image.pixels is not None
    pixels_BCRR = torch.from_numpy(image.pixels).permute(2, 0, 1)[None] / 127.5 - 1
    patches = engine.model.config.image_tokens
    prompt = engine.tokenizer.encode_prompt(PROMPT)
    answer = [engine.tokenizer.id(token.text.replace(" ", "▁")) for token in explanation.tokens]
    ids = [engine.model.config.image_token_id] * patches + prompt + answer
    types = [0] * (patches + len(prompt)) + [1] * len(answer)
    with torch.no_grad():
        attentions = model(
            input_ids=torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            token_type_ids=torch.tensor([types]),
            pixel_values=pixels_BCRR,
            output_attentions=True,
        ).attentions
    for number, token in enumerate(explanation.tokens):
        slot = patches + len(prompt) - 1 + number  # the slot whose output is this token
        for layer, weights_S in zip(explanation.layers, token.attention, strict=True):
            expected = attentions[layer][0, :, slot, : slot + 1].mean(dim=0)
            torch.testing.assert_close(weights_S, expected, rtol=1e-4, atol=1e-6)


def test_answer_and_probabilities_are_those_of_the_engine(
    made: tuple[Path, InferenceEngine, DecodedImage, Explanation],
) -> None:
    _, engine, image, explanation = made
    question = tasks.ask([PROMPT], max_new_tokens=TOKENS)
    ((_, answer),) = engine.ask([(0, image)], question)
    assert answer.answer == explanation.answer.answer
    assert answer.logprob == explanation.answer.logprob
    for token in explanation.tokens:
        probabilities = dict(token.candidates)
        assert probabilities[token.text] == pytest.approx(token.probability, rel=1e-3)


def test_shapes_are_those_of_the_tensors(
    made: tuple[Path, InferenceEngine, DecodedImage, Explanation],
) -> None:
    _, engine, _, explanation = made
    sizes, vision = engine.model.config.decoder, engine.model.config.vision
    patches, tokens = vision.num_patches, len(explanation.prompt_tokens)
    slots = patches + tokens
    found = {
        stage: {(tensor.name, tensor.shape): count for tensor, count in tensors.items()}
        for stage, tensors in explanation.shapes.items()
    }
    side = vision.resolution
    assert found[VISION]["normalized pixels", (1, 3, side, side)] == 1
    assert found[VISION]["output of a layer", (1, patches, vision.width)] == vision.depth
    wide = (1, patches, sizes.width)
    assert found[VISION]["image features as wide as the decoder", wide] == 1
    prefill, last = found["prefill"], found[f"decode step {TOKENS - 1}"]
    heads, kv_heads, size = sizes.num_heads, sizes.num_kv_heads, sizes.head_dim
    assert prefill["both, concatenated", (1, slots, sizes.width)] == 1
    # the last layer of a prefill computes the newest slot alone
    assert prefill["queries", (1, slots, heads, size)] == sizes.depth - 1
    assert prefill["queries", (1, 1, heads, size)] == 1
    assert prefill["keys in the cache", (1, kv_heads, slots, size)] == sizes.depth
    assert prefill["logits of the next token", (1, sizes.vocab_size)] == 1
    assert last["queries", (1, 1, heads, size)] == sizes.depth
    assert last["keys in the cache", (1, kv_heads, slots + TOKENS - 1, size)] == sizes.depth
    assert last["attention of the newest slot", (1, heads, slots + TOKENS - 1)] == sizes.depth
    assert list(found) == [VISION, "prefill", "decode step 1", f"decode step {TOKENS - 1}"]


def test_the_model_is_as_before_afterwards(
    made: tuple[Path, InferenceEngine, DecodedImage, Explanation],
) -> None:
    _, engine, _, _ = made
    for module in engine.model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


def test_masked_slots_have_no_weight() -> None:
    query_BNH, key_BKSH = torch.randn(1, 4, 8), torch.randn(1, 2, 6, 8)
    mask_B1S = torch.tensor([[[True, False, True, True, False, True]]])
    weight_BNS = attention_weights(query_BNH, key_BKSH, mask_B1S, scale=0.3, cap=None)
    assert weight_BNS.shape == (1, 4, 6)
    assert (weight_BNS[..., [1, 4]] == 0).all()
    torch.testing.assert_close(weight_BNS.sum(-1), torch.ones(1, 4))


def test_layers_are_spread_evenly_unless_they_are_named() -> None:
    assert choose_layers(None, 3) == (0, 1, 2)
    assert choose_layers(None, 18) == (1, 3, 5, 8, 10, 12, 14, 17)
    assert len(choose_layers(None, 26)) == MAX_LAYERS
    assert choose_layers((), 18) == tuple(range(18))
    assert choose_layers((4, 1, 4), 18) == (1, 4)
    with pytest.raises(UsageError, match="no layer 19: the decoder has 18"):
        choose_layers((18,), 18)


def test_attention_is_the_same_with_the_steps_of_a_gpu(
    made: tuple[Path, InferenceEngine, DecodedImage, Explanation], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU's steps read all allocated slots, under a mask, and one more runs than is needed."""
    _, engine, image, expected = made
    monkeypatch.setitem(model_runner.ASYNC_DEPTH, "cpu", 1)
    monkeypatch.setattr(
        engine.model, "kv_cache", partial(engine.model.kv_cache, fixed_shape=True), raising=True
    )
    found = explain(engine, image, tasks.ask([PROMPT], max_new_tokens=TOKENS))
    assert [token.text for token in found.tokens] == [token.text for token in expected.tokens]
    for token, other in zip(found.tokens, expected.tokens, strict=True):
        torch.testing.assert_close(token.attention, other.attention)
    slots = {shape.shape[2] for shape in found.shapes["decode step 1"] if "keys" in shape.name}
    assert slots == {128}
