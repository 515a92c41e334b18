"""The same random weights in transformers give the same numbers, tokens and text.

transformers is told `token_type_ids` of zeros: without them it reads the prompt as causal.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from transformers import PaliGemmaForConditionalGeneration, PaliGemmaProcessor
from transformers.models.gemma import modeling_gemma as gemma

from pgcli.checkpoints import weights
from pgcli.checkpoints.config import read_config
from pgcli.checkpoints.find import Checkpoint
from pgcli.checkpoints.preprocessing import read_preprocessing
from pgcli.checkpoints.save import save
from pgcli.checkpoints.weight_files import INDEX
from pgcli.engine.loader import load
from pgcli.engine.model_runner import ModelRunner
from pgcli.engine.sampler import OutputVocabulary
from pgcli.engine.tokenizer import left_pad
from pgcli.images import ImageLimits as PictureLimits
from pgcli.images import decode
from pgcli.model.config import DecoderConfig
from pgcli.model.cpu.optimize import optimize_for_device
from pgcli.model.gemma import Gemma, LMHead, RMSNorm, RotaryEmbedding
from pgcli.model.siglip import normalize_pixels
from pgcli.records import Item
from pgcli.tasks import Question
from tests.support.sequences import run_together
from tests.support.tiny import PATCHES, RESOLUTION, reference

# a line of the processor's own that numpy 2 warns of
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
EXACT = {"rtol": 0, "atol": 3e-5}  # of logits that vary by 0.14, summed in another order


@pytest.fixture(autouse=True)
def exact_convolutions():
    """cuDNN would compute transformers' patch convolution in tf32."""
    with torch.backends.cudnn.flags(allow_tf32=False):
        yield


def pair(folder, device="cpu", dtype=torch.float32, *, options=None, laid_out=True, **layout):
    """transformers' model, and this code's from the folder into which it was saved.

    Laid out as it is for a run, where that can be for the device and dtype.
    """
    own_head = layout.pop("own_head", False)
    theirs = reference(VOCABULARY, **layout)
    if own_head:
        theirs.config.tie_word_embeddings = False
        head = torch.randn_like(theirs.lm_head.weight) * 0.02
        theirs.lm_head.weight = torch.nn.Parameter(head, requires_grad=False)
    theirs.save_pretrained(folder, **(options or {}))
    ours = weights.load(folder, read_config(folder), dtype=dtype, device=device)
    if laid_out:
        optimize_for_device(ours)
    return theirs.to(device, dtype), ours


def pixels(rows, *, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(rows, 3, RESOLUTION, RESOLUTION, generator=generator) * 2 - 1


def their_inputs(prompts, pixels_BCRR, device, patches=PATCHES):
    """Left-padded as transformers' processor does it: padding, image, prompt."""
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


def their_answers(model, inputs, steps=STEPS):
    """Each row's new tokens, and the logits (B, V) before each of them."""
    told = model.generate(
        **inputs,
        do_sample=False,
        max_new_tokens=steps,
        suppress_tokens=[model.config.image_token_index],
        eos_token_id=1,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return told.sequences[:, inputs["input_ids"].shape[1] :].tolist(), told.logits


def our_answers(model, pixels_BCRR, prompts, steps=STEPS):
    output = OutputVocabulary(VOCABULARY, IMAGE, (1,))
    rows = run_together(model, model.encode(pixels_BCRR), prompts, output, steps)
    return [row.tokens for row in rows]


def assert_same_but_for_ties(ours, theirs, their_logits, image=IMAGE):
    """Where tokens part, transformers' two best logits lie within 1e-4."""
    for row, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        for step, token in enumerate(mine):
            if token != other[step]:
                scores = (
                    their_logits[step][row]
                    .float()
                    .index_fill(
                        0, torch.tensor(image, device=their_logits[step].device), -torch.inf
                    )
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
def test_pictures_are_seen_as_in_transformers(tmp_path, device, seed):
    """In float64, where nothing but a difference in kind is left."""
    theirs, ours = pair(tmp_path, device, torch.float64, seed=seed)
    pixels_BCRR = pixels(3, seed=seed).to(device, torch.float64)
    vision = theirs.model.vision_tower(pixels_BCRR).last_hidden_state
    torch.testing.assert_close(ours.vision(pixels_BCRR), vision, rtol=0, atol=1e-10)
    features = theirs.model.multi_modal_projector(vision)
    torch.testing.assert_close(ours.encode(pixels_BCRR), features, rtol=0, atol=1e-10)


@pytest.mark.parametrize("laid_out", [True, False], ids=["laid out", "stored"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_the_first_logits_and_every_token_are_as_in_transformers(
    tmp_path, device, layout, laid_out
):
    theirs, ours = pair(tmp_path, device, laid_out=laid_out, **layout)
    pixels_BCRR = pixels(len(PROMPTS)).to(device)
    inputs = their_inputs(PROMPTS, pixels_BCRR, device)
    token_BT, is_real_BT = left_pad(PROMPTS)
    cache = ours.kv_cache(len(PROMPTS))
    patch_BPD = ours.encode(pixels_BCRR)
    logits_BV = ours.prefill(patch_BPD, token_BT.to(device), is_real_BT.to(device), cache)
    their_tokens, their_logits = their_answers(theirs, inputs)
    torch.testing.assert_close(logits_BV, theirs(**inputs).logits[:, -1], **EXACT)
    torch.testing.assert_close(logits_BV, their_logits[0], **EXACT)

    tokens = our_answers(ours, pixels_BCRR, PROMPTS)
    assert_same_but_for_ties(tokens, their_tokens, their_logits)
    assert len({tuple(row) for row in tokens}) > 2, "rows that all agree prove nothing"
    if "own_head" in layout:
        assert len({token for row in tokens for token in row}) > STEPS

    # fed any tokens at all, every step's logits are those of one pass without a cache
    answers_BL = torch.randint(200, 390, (len(PROMPTS), STEPS), device=device)
    stepped = [ours.decode_step(token_B, cache) for token_B in answers_BL.T]
    ones = torch.ones_like(answers_BL)
    for name, more in (
        ("input_ids", answers_BL),
        ("attention_mask", ones),
        ("token_type_ids", ones),  # which marks what is generated: causal
    ):
        inputs[name] = torch.cat([inputs[name], more], dim=1)
    whole = theirs(**inputs).logits[:, -STEPS:]
    torch.testing.assert_close(torch.stack(stepped, dim=1), whole, **EXACT)


def test_the_comparison_would_notice_a_causal_prompt(tmp_path):
    theirs, _ = pair(tmp_path)
    inputs = their_inputs(PROMPTS, pixels(len(PROMPTS)), "cpu")
    right = theirs(**inputs).logits[:, -1]
    del inputs["token_type_ids"]
    assert (theirs(**inputs).logits[:, -1] - right).abs().max() > 0.1


@pytest.mark.parametrize(
    "options",
    [
        {"save_original_format": True},
        {"save_original_format": False},
        {"save_original_format": True, "max_shard_size": "100KB"},
        {"save_original_format": False, "max_shard_size": "100KB"},
    ],
    ids=str,
)
@pytest.mark.parametrize("with_index", [True, False])
@pytest.mark.parametrize("generation", [1, 2])
def test_every_layout_that_transformers_writes_answers_alike(
    tmp_path, options, with_index, generation
):
    theirs, _ = pair(tmp_path, options=options, generation=generation)
    index = tmp_path / INDEX
    assert index.exists() == ("max_shard_size" in options)
    if not with_index:
        index.unlink(missing_ok=True)
    ours = weights.load(tmp_path, read_config(tmp_path), dtype=torch.float32)
    their_tokens, their_logits = their_answers(
        theirs, their_inputs(PROMPTS, pixels(len(PROMPTS)), "cpu"), steps=3
    )
    tokens = our_answers(ours, pixels(len(PROMPTS)), PROMPTS, steps=3)
    assert_same_but_for_ties(tokens, their_tokens, their_logits)


@pytest.mark.parametrize("generation", [1, 2])
@pytest.mark.parametrize("head", ["shared", "its own"])
def test_what_is_saved_here_answers_alike_in_transformers(tmp_path, head, generation):
    _, ours = pair(tmp_path / "theirs", generation=generation, laid_out=False)
    if head == "its own":
        ours.decoder.lm_head = LMHead(ours.config.decoder, tied=False).requires_grad_(False)
        ours.config = replace(ours.config, tied=False)
    save(ours, tmp_path / "ours", dtype=torch.float32)
    theirs = PaliGemmaForConditionalGeneration.from_pretrained(tmp_path / "ours").eval()
    inputs = their_inputs(PROMPTS, pixels(len(PROMPTS)), "cpu")
    their_tokens, their_logits = their_answers(theirs, inputs, steps=4)
    tokens = our_answers(ours, pixels(len(PROMPTS)), PROMPTS, steps=4)
    assert_same_but_for_ties(tokens, their_tokens, their_logits)


@pytest.mark.parametrize("resolution", [28, 98])
@pytest.mark.parametrize("generation", [1, 2])
def test_any_resolution_is_as_in_transformers(tmp_path, generation, resolution):
    """4 and 49 image tokens here, 16 in every other test; as many as the config's sizes make."""
    theirs, ours = pair(tmp_path, generation=generation, resolution=resolution)
    patches = (resolution // 14) ** 2
    assert ours.config.image_tokens == patches
    generator = torch.Generator().manual_seed(3)
    shape = (len(PROMPTS), 3, resolution, resolution)
    pixels_BCRR = torch.rand(shape, generator=generator) * 2 - 1
    inputs = their_inputs(PROMPTS, pixels_BCRR, "cpu", patches=patches)
    their_tokens, their_logits = their_answers(theirs, inputs)
    assert_same_but_for_ties(our_answers(ours, pixels_BCRR, PROMPTS), their_tokens, their_logits)


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("generation", [1, 2])
def test_any_stored_dtype_is_read_as_transformers_reads_it(tmp_path, generation, stored):
    reference(VOCABULARY, generation=generation).to(stored).save_pretrained(tmp_path)
    theirs = PaliGemmaForConditionalGeneration.from_pretrained(tmp_path, dtype=torch.float32).eval()
    ours = weights.load(tmp_path, read_config(tmp_path), dtype=torch.float32)
    inputs = their_inputs(PROMPTS, pixels(len(PROMPTS)), "cpu")
    their_tokens, their_logits = their_answers(theirs, inputs, steps=4)
    tokens = our_answers(ours, pixels(len(PROMPTS)), PROMPTS, steps=4)
    assert_same_but_for_ties(tokens, their_tokens, their_logits)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_bfloat16_rounds_as_transformers_bfloat16(tmp_path, device, seed):
    """Rounding to 8 bits puts both a tenth off float32, in much the same places.

    Where they round alike they err alike, so the two are much nearer to each other than to
    float32: to a quarter of that, in the root mean square over all rows and logits.
    """
    exact, _ = pair(tmp_path, seed=seed)
    theirs, ours = pair(tmp_path, device, torch.bfloat16, seed=seed)
    pixels_BCRR = pixels(len(PROMPTS))
    exact_BV = exact(**their_inputs(PROMPTS, pixels_BCRR, "cpu")).logits[:, -1]
    inputs = their_inputs(PROMPTS, pixels_BCRR.bfloat16(), device)
    their_BV = theirs(**inputs).logits[:, -1].float().cpu()
    token_BT, is_real_BT = left_pad(PROMPTS)
    cache = ours.kv_cache(len(PROMPTS))
    patch_BPD = ours.encode(inputs["pixel_values"])
    our_BV = ours.prefill(patch_BPD, token_BT.to(device), is_real_BT.to(device), cache)
    assert our_BV.dtype == torch.bfloat16

    def apart(one, other):
        return (one - other).square().mean().sqrt().item()

    assert 0 < apart(their_BV, exact_BV) < 0.2 * exact_BV.std()
    assert apart(our_BV.float().cpu(), their_BV) < 0.25 * apart(their_BV, exact_BV)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_what_must_not_be_rounded_early_is_transformers_to_the_bit(dtype):
    """Norms and angles are float32 in every dtype; the embedding's factor is rounded first."""
    torch.manual_seed(0)
    sizes = {"head_dim": 64, "hidden_size": 48, "num_attention_heads": 2, "vocab_size": 20}
    theirs = transformers.GemmaConfig(**sizes, num_key_value_heads=1)
    ours = DecoderConfig(48, 1, 96, 2, 1, 64, vocab_size=20)

    x = (torch.randn(2, 5, 48) * 30).to(dtype)
    norms = RMSNorm(48, 1e-6), gemma.GemmaRMSNorm(48, 1e-6)
    weight = torch.nn.Parameter(torch.randn(48).to(dtype))
    norms[0].weight = norms[1].weight = weight
    assert torch.equal(norms[0](x), norms[1](x))

    position_BL = torch.tensor([[1, 2, 255, 256, 257, 258, 1024, 4095, 4096, 8191]])
    query_BLNH = torch.randn(1, 10, 2, 64).to(dtype)
    cos, sin = gemma.GemmaRotaryEmbedding(theirs)(query_BLNH, position_BL)
    turned, _ = gemma.apply_rotary_pos_emb(query_BLNH, query_BLNH, cos, sin, unsqueeze_dim=2)
    assert torch.equal(RotaryEmbedding(position_BL, ours, dtype)(query_BLNH), turned)

    token_BT = torch.arange(20)[None]
    embeddings = Gemma(ours).to(dtype), gemma.GemmaModel(theirs).to(dtype).embed_tokens
    embeddings[0].embed_tokens.weight.data.copy_(embeddings[1].weight)
    assert torch.equal(embeddings[0].embed(token_BT), embeddings[1](token_BT))


# From here on from files to text, with the processor on their side and the engine on ours.

QUESTIONS = (
    "caption en",
    "ocr",
    "detect red circle ; blue square",
    "how many shapes are there in this picture?",
    "answer en what is left of the big green triangle?",
    "is it é, 🙂 or 漢字?",
)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Files of several formats, sizes and shapes; as many as fill a batch of 64 with questions."""
    folder = tmp_path_factory.mktemp("pictures")
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
def in_transformers(tiny, pictures):
    """What PaliGemmaProcessor and generate make of every picture and question, in one batch."""
    processor = PaliGemmaProcessor.from_pretrained(tiny)
    model = PaliGemmaForConditionalGeneration.from_pretrained(tiny, dtype=torch.float32).eval()
    images = [Image.open(file).convert("RGB") for file in pictures for _ in QUESTIONS]
    texts = ["<image>" + question for _ in pictures for question in QUESTIONS]
    inputs = processor(images=images, text=texts, padding=True, return_tensors="pt")
    inputs.pop("labels", None)
    assert not inputs["token_type_ids"].any()
    tokens, logits = their_answers(model, inputs)
    return tokens, processor.batch_decode(tokens, skip_special_tokens=True), logits


@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_from_files_to_text_all_is_as_in_transformers(
    tiny, pictures, in_transformers, device, batch_size, monkeypatch
):
    engine = load(Checkpoint("tiny", tiny), device=device, dtype="float32", batch_size=batch_size)
    generated, sizes, prefill = {}, [], ModelRunner.prefill

    def prefilling(self, patch_BPD, group):
        generated.update((sequence.key, sequence.tokens) for sequence in group)
        sizes.append(len({len(sequence.prompt_ids) for sequence in group}))
        return prefill(self, patch_BPD, group)

    monkeypatch.setattr(ModelRunner, "prefill", prefilling)
    stream = []
    for number, file in enumerate(pictures):
        item = Item(number, file.name, file.name, path=str(file), prompts=QUESTIONS)
        stream.append((number * len(QUESTIONS), decode(item, engine.spec, PictureLimits())))
    answers = dict(engine.ask(stream, Question("ask", None, STEPS)))

    tokens, texts, logits = in_transformers
    assert sorted(answers) == list(range(len(tokens)))
    rows = [answers[place] for place in range(len(tokens))]
    assert [(row.index, row.prompt) for row in rows] == [
        (number, question) for number in range(len(pictures)) for question in QUESTIONS
    ]
    ids = [generated[f"{row.index} {row.prompt}"] for row in rows]
    assert [row.tokens for row in rows] == list(map(len, ids))
    image = engine.model.config.image_token_id
    assert_same_but_for_ties(ids, tokens, logits, image)
    for row, mine, theirs, text in zip(rows, ids, tokens, texts, strict=True):
        if mine == theirs[: len(mine)]:
            assert row.answer == text.strip()
    assert max(sizes) > 1 or batch_size < 64, "batches of one length prove nothing"
    assert len({row.answer for row in rows}) > len(pictures)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"resample": 2},
        {"image_mean": [0.48, 0.45, 0.4], "image_std": [0.27, 0.26, 0.28]},
    ],
    ids=str,
)
def test_pictures_become_the_same_numbers(tiny, pictures, tmp_path, settings):
    folder = Path(shutil.copytree(tiny, tmp_path / "model"))
    file = folder / "preprocessor_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    engine = load(Checkpoint("model", folder), device="cpu", dtype="float32", batch_size=1)
    said = read_preprocessing(folder, RESOLUTION)
    mean, std = torch.tensor(said.mean), torch.tensor(said.std)
    for path in pictures:
        theirs = processor(Image.open(path).convert("RGB"), return_tensors="pt")["pixel_values"]
        item = Item(0, path.name, path.name, path=str(path))
        square = torch.from_numpy(decode(item, engine.spec, PictureLimits()).pixels)
        ours = normalize_pixels(square[None], mean, std, torch.float32)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
