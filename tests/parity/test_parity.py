"""The same random weights in transformers give the same numbers, tokens and text.

transformers gets `token_type_ids` of zeros; without them, it attends to prompts causally.
"""

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from transformers.models.gemma import modeling_gemma as gemma

from pgcli.checkpoints import weights
from pgcli.checkpoints.config import read_config
from pgcli.checkpoints.find import Checkpoint
from pgcli.engine.loader import open_engine
from pgcli.engine.model_runner import ModelRunner
from pgcli.engine.sampler import OutputVocabulary
from pgcli.engine.tokenizer import left_pad
from pgcli.images import ImageLimits, decode
from pgcli.model.config import DecoderConfig
from pgcli.model.cpu.optimize import optimize_part_for_cpu
from pgcli.model.gemma import Gemma, RMSNorm, RotaryEmbedding
from pgcli.records import Item
from pgcli.tasks import Question
from tests.support.sequences import run_together
from tests.support.tiny import PATCHES, RESOLUTION, reference

# transformers' processor causes this warning with numpy 2
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

VOCABULARY = 400
IMAGE = VOCABULARY - 1
PROMPTS = [
    [2, 300, 108],
    [2, 301, 302, 303, 304, 305, 108],
    [2, 108],
    [2, 320, 321, 108],
    [2, 9, 108],
]
STEPS = 12
TIE = 1e-4
EXACT = {"rtol": 0, "atol": 3e-5}  # logits vary by 0.14, and sums have another order


@pytest.fixture(autouse=True)
def exact_convolutions():
    """Turns off TF32 in transformers' patch convolution."""
    with torch.backends.cudnn.flags(allow_tf32=False):
        yield


def pair(folder, device="cpu", dtype=torch.float32, *, options=None, packed=True, **layout):
    """transformers' random model, and pgcli's model loaded from its files.

    With `packed`, weights are packed as in a run, if the device and the dtype support it.
    """
    own_head = layout.pop("own_head", False)
    hf_model = reference(VOCABULARY, **layout)
    if own_head:
        hf_model.config.tie_word_embeddings = False
        head = torch.randn_like(hf_model.lm_head.weight) * 0.02
        hf_model.lm_head.weight = torch.nn.Parameter(head, requires_grad=False)
    hf_model.save_pretrained(folder, **(options or {}))
    model = weights.load_paligemma(folder, read_config(folder), dtype=dtype, device=device)
    if packed:
        for part in model.parts():
            optimize_part_for_cpu(model, part)
    return hf_model.to(device, dtype), model


def pixels(rows, *, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(rows, 3, RESOLUTION, RESOLUTION, generator=generator) * 2 - 1


def hf_inputs(prompts, pixels_BCRR, device, patches=PATCHES):
    """Left-padded as by transformers' processor: padding, image, prompt."""
    rows = [[IMAGE] * patches + list(prompt) for prompt in prompts]
    token_BS, is_real_BS = left_pad(rows)
    if is_real_BS is None:
        is_real_BS = torch.ones_like(token_BS, dtype=torch.bool)
    inputs = {
        "input_ids": token_BS,
        "attention_mask": is_real_BS.long(),
        "token_type_ids": torch.zeros_like(token_BS),
        "pixel_values": pixels_BCRR,
    }
    return {name: tensor.to(device) for name, tensor in inputs.items()}


def hf_answers(model, inputs, steps=STEPS):
    """Each row's new tokens, and the logits (B, V) before each of them."""
    output = model.generate(
        **inputs,
        do_sample=False,
        max_new_tokens=steps,
        suppress_tokens=[model.config.image_token_index],
        eos_token_id=1,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return output.sequences[:, inputs["input_ids"].shape[1] :].tolist(), output.logits


def pgcli_answers(model, pixels_BCRR, prompts, steps=STEPS):
    output = OutputVocabulary(VOCABULARY, IMAGE, (1,))
    rows = run_together(model, model.encode(pixels_BCRR), prompts, output, steps)
    return [row.tokens for row in rows]


def assert_same_but_for_ties(ids, expected, hf_logits, image=IMAGE):
    """Tokens may differ only if transformers' two highest logits differ by less than 1e-4."""
    for row, (mine, other) in enumerate(zip(ids, expected, strict=True)):
        for step, token in enumerate(mine):
            if token != other[step]:
                scores = (
                    hf_logits[step][row]
                    .float()
                    .index_fill(0, torch.tensor(image, device=hf_logits[step].device), -torch.inf)
                )
                best, second = scores.topk(2).values.tolist()
                assert best - second < TIE, f"row {row}, step {step}: {token}, not {other[step]}"
                break
        else:
            assert all(token == 0 for token in other[len(mine) :]), f"row {row} ended too early"


LAYOUTS = [
    {},
    {"own_head": True},
    {"num_key_value_heads": 2},
    {"num_key_value_heads": 4},
    {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 8},
    {"seed": 1},
    {"seed": 2, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    {"seed": 3, "rms_norm_eps": 1e-2, "num_hidden_layers": 1},
    {"generation": 2},
    {"generation": 2, "own_head": True, "seed": 1},
    {"generation": 2, "num_key_value_heads": 1, "sliding_window": 2},
    {"generation": 2, "num_key_value_heads": 4, "sliding_window": 20},
    {"generation": 2, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 8},
    {"generation": 2, "sliding_window": 4096, "query_pre_attn_scalar": 300},
    {"generation": 2, "sliding_window": 3, "attn_logit_softcapping": None, "seed": 2},
    {"generation": 2, "final_logit_softcapping": None, "rms_norm_eps": 1e-2},
    {
        "generation": 2,
        "num_hidden_layers": 4,
        "layer_types": [f"{kind}_attention" for kind in ("full", "sliding", "sliding", "full")],
    },
]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_image_features_equal_transformers(tmp_path, device, seed):
    """In float64, so that rounding hides no difference."""
    hf_model, model = pair(tmp_path, device, torch.float64, seed=seed)
    pixels_BCRR = pixels(3, seed=seed).to(device, torch.float64)
    vision = hf_model.model.vision_tower(pixels_BCRR).last_hidden_state
    torch.testing.assert_close(model.vision(pixels_BCRR), vision, rtol=0, atol=1e-10)
    features = hf_model.model.multi_modal_projector(vision)
    torch.testing.assert_close(model.encode(pixels_BCRR), features, rtol=0, atol=1e-10)


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "stored"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_logits_and_tokens_equal_transformers(tmp_path, device, layout, packed):
    hf_model, model = pair(tmp_path, device, packed=packed, **layout)
    pixels_BCRR = pixels(len(PROMPTS)).to(device)
    inputs = hf_inputs(PROMPTS, pixels_BCRR, device)
    token_BT, is_real_BT = left_pad(PROMPTS)
    cache = model.kv_cache(len(PROMPTS))
    patch_BPD = model.encode(pixels_BCRR)
    logits_BV = model.prefill(patch_BPD, token_BT.to(device), is_real_BT.to(device), cache)
    hf_tokens, hf_logits = hf_answers(hf_model, inputs)
    torch.testing.assert_close(logits_BV, hf_model(**inputs).logits[:, -1], **EXACT)
    torch.testing.assert_close(logits_BV, hf_logits[0], **EXACT)

    tokens = pgcli_answers(model, pixels_BCRR, PROMPTS)
    assert_same_but_for_ties(tokens, hf_tokens, hf_logits)
    assert len({tuple(row) for row in tokens}) > 2, "the rows do not differ"
    if "own_head" in layout:
        assert len({token for row in tokens for token in row}) > STEPS

    # for any tokens, the logits of each step equal those of one pass without a cache
    answers_BL = torch.randint(200, 390, (len(PROMPTS), STEPS), device=device)
    stepped = [model.decode_step(token_B, cache) for token_B in answers_BL.T]
    ones = torch.ones_like(answers_BL)
    for name, more in (
        ("input_ids", answers_BL),
        ("attention_mask", ones),
        ("token_type_ids", ones),  # ones mark generated, causal tokens
    ):
        inputs[name] = torch.cat([inputs[name], more], dim=1)
    whole = hf_model(**inputs).logits[:, -STEPS:]
    torch.testing.assert_close(torch.stack(stepped, dim=1), whole, **EXACT)


@pytest.mark.parametrize("resolution", [28, 98])
@pytest.mark.parametrize("generation", [1, 2])
def test_any_resolution_equals_transformers(tmp_path, generation, resolution):
    """4 and 49 image tokens here, 16 in every other test, as the config's sizes say."""
    hf_model, model = pair(tmp_path, generation=generation, resolution=resolution)
    patches = (resolution // 14) ** 2
    assert model.config.image_tokens == patches
    generator = torch.Generator().manual_seed(3)
    shape = (len(PROMPTS), 3, resolution, resolution)
    pixels_BCRR = torch.rand(shape, generator=generator) * 2 - 1
    inputs = hf_inputs(PROMPTS, pixels_BCRR, "cpu", patches=patches)
    hf_tokens, hf_logits = hf_answers(hf_model, inputs)
    assert_same_but_for_ties(pgcli_answers(model, pixels_BCRR, PROMPTS), hf_tokens, hf_logits)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_bfloat16_rounding_matches_transformers(tmp_path, device, seed):
    """Rounding to 8 bits changes both by a tenth, in much the same elements.

    Equal rounding gives equal errors: the RMS difference of the two is below a quarter of
    their difference from float32.
    """
    exact, _ = pair(tmp_path, seed=seed)
    hf_model, model = pair(tmp_path, device, torch.bfloat16, seed=seed)
    pixels_BCRR = pixels(len(PROMPTS))
    exact_BV = exact(**hf_inputs(PROMPTS, pixels_BCRR, "cpu")).logits[:, -1]
    inputs = hf_inputs(PROMPTS, pixels_BCRR.bfloat16(), device)
    hf_BV = hf_model(**inputs).logits[:, -1].float().cpu()
    token_BT, is_real_BT = left_pad(PROMPTS)
    cache = model.kv_cache(len(PROMPTS))
    patch_BPD = model.encode(inputs["pixel_values"])
    logits_BV = model.prefill(patch_BPD, token_BT.to(device), is_real_BT.to(device), cache)
    assert logits_BV.dtype == torch.bfloat16

    def rms_difference(one, other):
        return (one - other).square().mean().sqrt().item()

    assert 0 < rms_difference(hf_BV, exact_BV) < 0.2 * exact_BV.std()
    assert rms_difference(logits_BV.float().cpu(), hf_BV) < 0.25 * rms_difference(hf_BV, exact_BV)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_norms_angles_and_embeddings_equal_bitwise(dtype):
    """Norms and angles are float32 for every dtype; the embedding's factor is rounded first."""
    torch.manual_seed(0)
    sizes = {"head_dim": 64, "hidden_size": 48, "num_attention_heads": 2, "vocab_size": 20}
    hf_config = transformers.GemmaConfig(**sizes, num_key_value_heads=1)
    config = DecoderConfig(48, 1, 96, 2, 1, 64, vocab_size=20)

    x = (torch.randn(2, 5, 48) * 30).to(dtype)
    norms = RMSNorm(48, 1e-6), gemma.GemmaRMSNorm(48, 1e-6)
    weight = torch.nn.Parameter(torch.randn(48).to(dtype))
    norms[0].weight = norms[1].weight = weight
    assert torch.equal(norms[0](x), norms[1](x))

    position_BL = torch.tensor([[1, 2, 255, 256, 257, 258, 1024, 4095, 4096, 8191]])
    query_BLNH = torch.randn(1, 10, 2, 64).to(dtype)
    cos, sin = gemma.GemmaRotaryEmbedding(hf_config)(query_BLNH, position_BL)
    rotated, _ = gemma.apply_rotary_pos_emb(query_BLNH, query_BLNH, cos, sin, unsqueeze_dim=2)
    assert torch.equal(RotaryEmbedding.of(position_BL, config, dtype)(query_BLNH), rotated)

    token_BT = torch.arange(20)[None]
    embeddings = Gemma(config).to(dtype), gemma.GemmaModel(hf_config).to(dtype).embed_tokens
    embeddings[0].embed_tokens.weight.data.copy_(embeddings[1].weight)
    assert torch.equal(embeddings[0].embed(token_BT), embeddings[1](token_BT))


# From files to text: transformers' processor and model compared with the engine.

QUESTIONS = (
    "caption en",
    "ocr",
    "detect red circle ; blue square",
    "how many shapes are there in this image?",
    "answer en what is left of the big green triangle?",
    "is it é, 🙂 or 漢字?",
)


@pytest.fixture(scope="module")
def image_files(tmp_path_factory):
    """Files of several formats, sizes and shapes, enough to fill a batch of 64 with questions."""
    folder = tmp_path_factory.mktemp("image_files")
    random = np.random.default_rng(5)
    found = []
    for number in range(11):
        width, height = (int(side) for side in random.integers(20, 150, 2))
        coarse = random.integers(0, 256, (4, 5, 3), dtype=np.uint8)
        image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        found.append(folder / f"{number:02}.{('png', 'jpg', 'webp')[number % 3]}")
        image.convert("L" if number == 7 else "RGB").save(found[-1])
    return found


@pytest.fixture(scope="module")
def in_transformers(tiny, image_files):
    """The output of PaliGemmaProcessor and generate for every image and question, in one batch."""
    processor = transformers.PaliGemmaProcessor(
        # if torchvision is installed, transformers would resize with it, which rounds differently
        transformers.AutoImageProcessor.from_pretrained(tiny, backend="pil"),
        transformers.AutoTokenizer.from_pretrained(tiny),
    )
    model = transformers.PaliGemmaForConditionalGeneration.from_pretrained(
        tiny, dtype=torch.float32
    ).eval()
    images = [Image.open(file).convert("RGB") for file in image_files for _ in QUESTIONS]
    texts = ["<image>" + question for _ in image_files for question in QUESTIONS]
    inputs = processor(images=images, text=texts, padding=True, return_tensors="pt")
    inputs.pop("labels", None)
    assert not inputs["token_type_ids"].any()
    tokens, logits = hf_answers(model, inputs)
    return tokens, processor.batch_decode(tokens, skip_special_tokens=True), logits


@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_text_from_files_equals_transformers(
    tiny, image_files, in_transformers, device, batch_size, monkeypatch
):
    engine = open_engine(
        Checkpoint("tiny", tiny), device=device, dtype="float32", batch_size=batch_size
    )
    generated, sizes, prefill = {}, [], ModelRunner.prefill

    def prefilling(self, patch_BPD, group):
        generated.update((sequence.key, sequence.tokens) for sequence in group)
        sizes.append(len({len(sequence.prompt_ids) for sequence in group}))
        return prefill(self, patch_BPD, group)

    monkeypatch.setattr(ModelRunner, "prefill", prefilling)
    stream = []
    for number, file in enumerate(image_files):
        item = Item(number, file.name, file.name, path=str(file), prompts=QUESTIONS)
        stream.append((number * len(QUESTIONS), decode(item, engine.spec, ImageLimits())))
    answers = dict(engine.ask(stream, Question("ask", None, STEPS)))

    tokens, texts, logits = in_transformers
    assert sorted(answers) == list(range(len(tokens)))
    rows = [answers[row_index] for row_index in range(len(tokens))]
    assert [(row.index, row.prompt) for row in rows] == [
        (number, question) for number in range(len(image_files)) for question in QUESTIONS
    ]
    ids = [generated[f"{row.index} {row.prompt}"] for row in rows]
    assert [row.tokens for row in rows] == list(map(len, ids))
    image = engine.model.config.image_token_id
    assert_same_but_for_ties(ids, tokens, logits, image)
    for row, mine, expected, text in zip(rows, ids, tokens, texts, strict=True):
        if mine == expected[: len(mine)]:
            assert row.answer == text.strip()
    assert max(sizes) > 1 or batch_size < 64, "no batch has several lengths"
    assert len({row.answer for row in rows}) > len(image_files)
