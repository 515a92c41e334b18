"""`pgcli explain`: attention is that of the model, shapes are those of its tensors."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from pgcli import tasks
from pgcli.checkpoints.find import Checkpoint
from pgcli.engine.engine import InferenceEngine
from pgcli.engine.loader import open_engine
from pgcli.errors import UsageError
from pgcli.explain.explain import DECODER, MAX_LAYERS, VISION, Explanation, choose_layers, explain
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
def made(request, tmp_path) -> tuple[Path, InferenceEngine, DecodedImage, Explanation]:
    """A checkpoint of either generation, and the explanation of its answer."""
    folder = request.getfixturevalue(request.param)
    engine = open_engine(Checkpoint("tiny", folder), device="cpu", dtype="float32", batch_size=1)
    image = image_for(engine, tmp_path)
    question = tasks.ask([PROMPT], max_new_tokens=TOKENS)
    return folder, engine, image, explain(engine, image, question)


def test_probabilities_of_the_explaining_pass_are_those_of_the_engine(made):
    *_, explanation = made
    assert 0 < explanation.difference < 1e-5


def test_attention_equals_that_of_transformers(made):
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
        seen = model.model.vision_tower(pixels_BCRR, output_attentions=True).attentions
        attentions = model(
            input_ids=torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            token_type_ids=torch.tensor([types]),
            pixel_values=pixels_BCRR,
            output_attentions=True,
        ).attentions
    for number, token in enumerate(explanation.tokens):
        slot = patches + len(prompt) - 1 + number  # the slot whose output is this token
        for layer, weights_NS in zip(explanation.layers, token.attention, strict=True):
            expected = attentions[layer][0, :, slot, : slot + 1]
            torch.testing.assert_close(weights_NS, expected, rtol=1e-4, atol=1e-6)
    for layer, weights_NP in zip(
        explanation.vision_layers, explanation.vision_attention, strict=True
    ):
        torch.testing.assert_close(weights_NP, seen[layer][0].mean(dim=1), rtol=1e-3, atol=1e-5)


def test_answer_and_probabilities_are_those_of_the_engine(made):
    _, engine, image, explanation = made
    question = tasks.ask([PROMPT], max_new_tokens=TOKENS)
    ((_, answer),) = engine.ask([(0, image)], question)
    assert answer.answer == explanation.answer.answer
    assert answer.logprob == explanation.answer.logprob
    for token in explanation.tokens:
        probabilities = dict(token.candidates)
        assert probabilities[token.text] == pytest.approx(token.probability, rel=1e-3)


def test_shapes_are_those_of_the_tensors(made):
    _, engine, _, explanation = made
    sizes, vision = engine.model.config.decoder, engine.model.config.vision
    patches = vision.num_patches
    slots = patches + len(explanation.prompt_tokens) + TOKENS - 1
    found = {
        stage: {(tensor.name, tensor.shape): count for tensor, count in tensors.items()}
        for stage, tensors in explanation.shapes.items()
    }
    side = vision.resolution
    assert found[VISION]["normalized pixels", (1, 3, side, side)] == 1
    assert found[VISION]["output of a layer", (1, patches, vision.width)] == vision.depth
    wide = (1, patches, sizes.width)
    assert found[VISION]["image features as wide as the decoder", wide] == 1
    decoder = found[DECODER]
    heads, kv_heads, size = sizes.num_heads, sizes.num_kv_heads, sizes.head_dim
    assert decoder["image, prompt and answer", (1, slots, sizes.width)] == 1
    assert decoder["queries", (1, slots, heads, size)] == sizes.depth
    assert decoder["keys", (1, slots, kv_heads, size)] == sizes.depth
    assert decoder["attention of all slots to all", (1, heads, slots, slots)] == sizes.depth
    assert decoder["logits of the answer's tokens", (TOKENS, engine.tokenizer.size)] == 1


def test_layers_are_spread_evenly_unless_they_are_named():
    assert choose_layers(None, 3) == (0, 1, 2)
    assert choose_layers(None, 18) == (1, 3, 5, 8, 10, 12, 14, 17)
    assert len(choose_layers(None, 26)) == MAX_LAYERS
    assert choose_layers((), 18) == tuple(range(18))
    assert choose_layers((4, 1, 4), 18) == (1, 4)
    with pytest.raises(UsageError, match="no layer 19: the decoder has 18"):
        choose_layers((18,), 18)
