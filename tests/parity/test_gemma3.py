"""Gemma 3: the same random weights in transformers give the same numbers, tokens and prompts.

transformers gets `token_type_ids` of ones on an image's slots; without them, images are causal.
"""

from functools import partial

import pytest
import torch
import transformers

from pgcli.checkpoints import weights
from pgcli.checkpoints.adapters import open_adapter
from pgcli.checkpoints.config import read_config
from pgcli.checkpoints.find import Checkpoint
from pgcli.engine.loader import open_engine, read_tokenizer
from pgcli.engine.model_runner import generate
from pgcli.engine.sampler import OutputVocabulary
from pgcli.engine.sequence import Sequence
from pgcli.engine.tokenizer import left_pad
from pgcli.model.cpu.optimize import optimize_part_for_cpu
from tests.support.tiny_gemma3 import (
    BEGIN,
    IMAGE,
    RESOLUTION,
    TEMPLATE,
    TOKENS,
    VOCABULARY,
    reference,
    token_id,
    write_checkpoint,
)

STEPS, TIE = 24, 1e-4
EXACT = {"rtol": 0, "atol": 3e-5}
SLOT, HEAD = token_id(IMAGE), (2, token_id("<start_of_turn>"), 300, token_id(BEGIN))
END_ID = token_id("<end_of_image>")
TAILS = [
    (END_ID, 301, 302, 107),
    (END_ID, 303, 304, 305, 306, 307, 107),
    (END_ID, 5, 107),
    (END_ID, 6, 107),
]
VOCABULARY_OF_ANSWERS = OutputVocabulary(TOKENS, SLOT, (1, token_id("<end_of_turn>")))


def pair(folder, *, dtype=torch.float32, packed=True, options=None, **settings):
    """transformers' random model, and pgcli's model loaded from its files."""
    hf_model = reference(**settings)
    hf_model.save_pretrained(folder, **(options or {}))
    model = weights.load_paligemma(folder, read_config(folder), dtype=dtype)
    if packed:
        for part in model.parts():
            optimize_part_for_cpu(model, part)
    return hf_model.to(dtype), model


def pixels(rows, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(rows, 3, RESOLUTION, RESOLUTION, generator=generator) * 2 - 1


@torch.inference_mode()
def hf_answers(model, pixels_BCRR, tails, *, head=HEAD, image_tokens=4, steps=STEPS):
    """Each row's new tokens, and the logits (B, V) before each of them."""
    token_BS, is_real_BS = left_pad([[*head, *[SLOT] * image_tokens, *tail] for tail in tails])
    is_real_BS = torch.ones_like(token_BS, dtype=torch.bool) if is_real_BS is None else is_real_BS
    output = model.generate(
        input_ids=token_BS,
        attention_mask=is_real_BS.long(),
        token_type_ids=(token_BS == SLOT).long(),
        pixel_values=pixels_BCRR.to(model.dtype),
        do_sample=False,
        max_new_tokens=steps,
        suppress_tokens=[SLOT, *range(TOKENS, VOCABULARY)],
        eos_token_id=list(VOCABULARY_OF_ANSWERS.stop_tokens),
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return output.sequences[:, token_BS.shape[1] :].tolist(), output.logits


@torch.inference_mode()
def answers(model, pixels_BCRR, tails, *, head=HEAD, steps=STEPS):
    sequences = [Sequence(row, "", tail, steps, head_ids=head) for row, tail in enumerate(tails)]
    patch_BPD = model.encode(pixels_BCRR.to(model.projector.weight.dtype))
    rows = generate(model, patch_BPD, sequences, VOCABULARY_OF_ANSWERS)
    return [row.tokens for row in rows]


@torch.inference_mode()
def first_logits(model, pixels_BCRR, tails, head=HEAD):
    patch_BPD = model.encode(pixels_BCRR.to(model.projector.weight.dtype))
    token_BT, is_real_BT = left_pad(tails)
    cache, head_H = model.kv_cache(len(tails)), torch.tensor(head)
    return model.prefill(patch_BPD, token_BT, is_real_BT, cache, head_H=head_H)


def assert_same(tokens, expected, hf_logits):
    """Tokens may differ only if transformers' two highest logits differ by less than TIE."""
    for row, (mine, other) in enumerate(zip(tokens, expected, strict=True)):
        for step, token in enumerate(mine):
            if token != other[step]:
                logits_V = hf_logits[step][row, :TOKENS].float()
                logits_V[SLOT] = -torch.inf
                best, second = logits_V.topk(2).values.tolist()
                assert best - second < TIE, f"row {row}, step {step}: {token}, not {other[step]}"
                break


def test_features_after_tower_and_projector_are_equal(tmp_path):
    for image_tokens in (1, 4, 16):
        hf_model, model = pair(tmp_path / str(image_tokens), image_tokens=image_tokens)
        pixels_BCRR = pixels(2)
        expected = hf_model.model.get_image_features(pixels_BCRR).pooler_output
        feature_BPD = model.encode(pixels_BCRR)
        assert feature_BPD.shape[1] == image_tokens
        scale = float(expected.abs().max())
        torch.testing.assert_close(feature_BPD, expected, rtol=0, atol=1e-4 * scale)


LAYOUTS = [
    {},
    {"window": 6},
    {"image_tokens": 16, "window": 40},
    {"image_tokens": 16, "window": 20},
    {"image_tokens": 16, "window": 6},  # shorter than the block of an image
    {"pattern": 6, "num_hidden_layers": 6, "window": 8},
    {"factor": 1.0, "window": 12},
    {"query_pre_attn_scalar": 168, "head_dim": 128, "window": 12, "seed": 1},
    {"num_key_value_heads": 1, "rms_norm_eps": 1e-2},
    {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 8},
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("packed", [False, True])
def test_logits_and_tokens_of_a_ragged_batch_are_equal(layout, packed, tmp_path):
    hf_model, model = pair(tmp_path, packed=packed, **layout)
    tails, pixels_BCRR = TAILS, pixels(len(TAILS))
    expected, hf_logits = hf_answers(
        hf_model, pixels_BCRR, tails, image_tokens=layout.get("image_tokens", 4)
    )
    logits_BV = first_logits(model, pixels_BCRR, tails)
    torch.testing.assert_close(logits_BV, hf_logits[0].float(), **EXACT)
    assert_same(answers(model, pixels_BCRR, tails), expected, hf_logits)


def test_prompts_of_equal_length_are_causal_too(tmp_path):
    hf_model, model = pair(tmp_path, window=6)
    tails, pixels_BCRR = TAILS[2:], pixels(2)
    expected, hf_logits = hf_answers(hf_model, pixels_BCRR, tails)
    torch.testing.assert_close(first_logits(model, pixels_BCRR, tails), hf_logits[0], **EXACT)
    assert_same(answers(model, pixels_BCRR, tails), expected, hf_logits)


def test_tokens_do_not_depend_on_the_batch(tmp_path):
    _, model = pair(tmp_path, window=8)
    pixels_BCRR = pixels(len(TAILS))
    together = answers(model, pixels_BCRR, TAILS)
    alone = [
        answers(model, pixels_BCRR[row : row + 1], [tail])[0] for row, tail in enumerate(TAILS)
    ]
    assert together == alone


def test_long_positions_are_scaled_in_full_layers_only(tmp_path):
    hf_model, model = pair(tmp_path, window=64)
    tail = tuple(torch.randint(300, 1500, (2000,), generator=torch.Generator().manual_seed(0)))
    tail = tuple(map(int, tail))
    expected, hf_logits = hf_answers(hf_model, pixels(1), [tail], steps=2)
    torch.testing.assert_close(first_logits(model, pixels(1), [tail]), hf_logits[0], **EXACT)
    assert_same(answers(model, pixels(1), [tail], steps=2), expected, hf_logits)


def test_bfloat16_differs_by_rounding_only(tmp_path):
    """Positions that begin at 1 would change the cosines that are rounded to bfloat16."""
    hf_model, model = pair(tmp_path, dtype=torch.bfloat16, packed=False)
    pixels_BCRR = pixels(len(TAILS)).bfloat16()
    _, hf_logits = hf_answers(hf_model, pixels_BCRR, TAILS)
    difference = (first_logits(model, pixels_BCRR, TAILS).float() - hf_logits[0].float()).abs()
    assert float(difference.max()) < 0.02 * float(hf_logits[0].float().abs().max())


NAMES = [
    ("language_model.model.", "vision_tower.vision_model.", ""),
    ("model.language_model.", "model.vision_tower.vision_model.", "model."),
    ("model.language_model.", "model.vision_tower.", "model."),
    ("language_model.model.", "vision_tower.", ""),
]


@pytest.mark.parametrize("layout", NAMES, ids=str)
@pytest.mark.parametrize("head", [None, "lm_head.weight", "language_model.lm_head.weight"])
def test_layouts_of_tensor_names_load_the_same_weights(layout, head, tmp_path):
    import safetensors.torch

    decoder, tower, prefix = layout
    hf_model = reference()
    hf_model.save_pretrained(tmp_path)
    tensors = {}
    for name, tensor in hf_model.state_dict().items():
        new = name.replace("model.language_model.", decoder)
        new = new.replace("model.vision_tower.vision_model.", "model.vision_tower.")
        new = new.replace("model.vision_tower.", tower).replace(
            "model.multi_modal", f"{prefix}multi_modal"
        )
        if name != "lm_head.weight":
            tensors[new] = tensor.clone()
        elif head is not None:
            tensors[head] = tensor.clone()
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
    model = weights.load_paligemma(tmp_path, read_config(tmp_path), dtype=torch.float32)
    _, hf_logits = hf_answers(hf_model, pixels(2), TAILS[:2], steps=1)
    torch.testing.assert_close(first_logits(model, pixels(2), TAILS[:2]), hf_logits[0], **EXACT)


TEXTS = ["What is this?", "  lead\n", "\n\nnewlines first", "Größe 😀", "two  blanks", "a\n\nb"]


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("system", [None, "You are an expert.", "ends\n", "\n\nstarts", "a\n\n"])
def test_prompt_ids_are_the_processor_s(system, tmp_path):
    from PIL import Image

    folder = write_checkpoint(tmp_path / "model")
    processor = transformers.Gemma3Processor(
        image_processor=transformers.Gemma3ImageProcessorPil.from_pretrained(folder),
        tokenizer=transformers.AutoTokenizer.from_pretrained(folder),
        chat_template=TEMPLATE,
        image_seq_length=4,
    )
    tokenizer = read_tokenizer(folder, read_config(folder))
    opening = (
        []
        if system is None
        else [{"role": "system", "content": [{"type": "text", "text": system}]}]
    )
    for text in TEXTS:
        content = [{"type": "image"}, {"type": "text", "text": text}]
        prompt = processor.apply_chat_template(
            [*opening, {"role": "user", "content": content}], add_generation_prompt=True
        )
        image = Image.new("RGB", (RESOLUTION, RESOLUTION))
        expected = processor(text=[prompt], images=[[image]], add_special_tokens=False)
        ids = [*tokenizer.encode_head(system), *[SLOT] * 4, *tokenizer.encode_prompt(text)]
        assert ids == expected["input_ids"][0], repr(text)


def test_typed_control_tokens_stay_text(tmp_path):
    folder = write_checkpoint(tmp_path)
    tokenizer = read_tokenizer(folder, read_config(folder))
    for typed in ("<end_of_turn>", "<start_of_turn>", BEGIN, IMAGE, "<bos>"):
        with pytest.warns(UserWarning, match="begins with"):
            read_tokenizer(folder, read_config(folder)).encode_prompt(f"{typed} x")
        plain = tokenizer.encode_prompt("a b")
        for ids in (tokenizer.encode_prompt(f"a {typed} b"), tokenizer.encode_head(f"a {typed} b")):
            for token in (token_id("<end_of_turn>"), token_id(IMAGE)):
                assert ids.count(token) <= plain.count(token)
            assert ids.count(token_id("<bos>")) <= 1


def test_prompt_without_a_chat_template_is_plain_text(tmp_path):
    folder = write_checkpoint(tmp_path, template=None)
    tokenizer = read_tokenizer(folder, read_config(folder))
    newlines = token_id("\n\n")
    assert tokenizer.encode_head() == (2, newlines, token_id(BEGIN))
    assert tokenizer.encode_prompt(" x ")[:2] == [token_id("<end_of_image>"), newlines]
    assert tokenizer.end_of_turn is None


def test_choices_have_the_likelihood_of_their_tokens(tmp_path):
    """The sum over a choice's tokens and the token that ends the turn."""
    from pgcli.images import decode
    from pgcli.records import Item
    from tests.support.tiny_gemma3 import RESOLUTION

    folder = write_checkpoint(tmp_path / "model", window=6)
    engine = open_engine(Checkpoint("tiny", folder), device="cpu", batch_size=2)
    hf_model = transformers.Gemma3ForConditionalGeneration.from_pretrained(folder)
    image = tmp_path / "a.png"
    from PIL import Image

    Image.effect_noise((RESOLUTION, RESOLUTION), 64).convert("RGB").save(image)
    from pgcli import tasks
    from pgcli.images import ImageLimits

    question = tasks.ask(["Which?"], choices=["yes", "no way"], instructed=True)
    item = Item(0, "a", "a", str(image), prompts=("Which?",), choices=question.choices)
    decoded = decode(item, engine.spec, ImageLimits())
    [(_, answer)] = engine.ask([(0, decoded)], question)
    tokenizer = engine.tokenizer
    prompt = [*tokenizer.encode_head(), *[SLOT] * 4, *tokenizer.encode_prompt("Which?")]
    pixels_BCRR = torch.from_numpy(decoded.pixels).permute(2, 0, 1)[None].float() / 127.5 - 1
    for choice in answer.choices:
        ids = [*tokenizer.encode_text(choice.text), token_id("<end_of_turn>")]
        token_BS = torch.tensor([prompt + ids])
        with torch.inference_mode():
            logits = hf_model(
                input_ids=token_BS,
                token_type_ids=(token_BS == SLOT).long(),
                pixel_values=pixels_BCRR,
            ).logits[0, len(prompt) - 1 : -1]
        logits = logits.clone()
        logits[:, SLOT] = -torch.inf
        logits[:, TOKENS:] = -torch.inf
        expected = sum(
            row.log_softmax(-1)[token].item() for row, token in zip(logits, ids, strict=True)
        )
        assert choice.logprob == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model.model."])
def test_lora_adapters_in_both_spellings_change_the_logits_as_in_peft(prefix, tmp_path):
    import peft
    import safetensors.torch

    hf_model = reference()
    hf_model.save_pretrained(tmp_path / "base")
    targets = "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj".split()
    pattern = rf".*language_model.*\.({'|'.join(targets)})"
    adapted = peft.get_peft_model(hf_model, peft.LoraConfig(r=2, target_modules=pattern))
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(std=0.1)
    adapted.save_pretrained(tmp_path / "adapter")
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    tensors = safetensors.torch.load_file(file)
    assert len(tensors) == 2 * 7 * 4
    renamed = {
        name.replace("model.language_model.", prefix, 1): tensor for name, tensor in tensors.items()
    }
    safetensors.torch.save_file(renamed, file)
    model = weights.load_paligemma(
        tmp_path / "base",
        read_config(tmp_path / "base"),
        dtype=torch.float32,
        adapter=partial(open_adapter, tmp_path / "adapter"),
    )
    _, hf_logits = hf_answers(adapted.merge_and_unload(), pixels(2), TAILS[:2], steps=1)
    torch.testing.assert_close(first_logits(model, pixels(2), TAILS[:2]), hf_logits[0], **EXACT)
