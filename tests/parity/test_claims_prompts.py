"""Published claims about PaliGemma's input: pixels, prompt ids and their concatenation."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from PIL import Image
from tokenizers import AddedToken
from torch import Tensor

from pgcli.checkpoints.find import Checkpoint
from pgcli.engine.engine import InferenceEngine
from pgcli.engine.loader import load
from pgcli.engine.tokenizer import Tokenizer, left_pad
from pgcli.images import ImageLimits, ImageSpec, decode
from pgcli.model.siglip import normalize_pixels
from pgcli.records import DecodedImage, Item
from pgcli.tasks import Question
from tests.support.tiny import PATCHES, RESOLUTION

BOS, EOS, NEWLINE = 2, 1, 108
HALF = torch.full((3,), 0.5)


@pytest.fixture(scope="module")
def vocabulary(tiny: Path) -> Tokenizer:
    return Tokenizer.from_folder(tiny)


@pytest.fixture(scope="module")
def engine(tiny: Path) -> InferenceEngine:
    return load(Checkpoint("tiny", tiny), device="cpu", dtype="float32", batch_size=4)


def stored(mode: str, colour: Any, size: tuple[int, int] = (40, 30)) -> bytes:
    """A PNG of one colour."""
    data = BytesIO()
    Image.new(mode, size, colour).save(data, "PNG")
    return data.getvalue()


def decoded_image(data: bytes, index: int = 0, prompts: tuple[str, ...] = ()) -> DecodedImage:
    item = Item(index, str(index), str(index), data=data, prompts=prompts)
    image = decode(item, ImageSpec(RESOLUTION), ImageLimits())
    assert image.fault is None
    return image


def channels(mode: str, colour: Any) -> Tensor:
    """The normalized value of each channel of an image of one colour."""
    pixels = decoded_image(stored(mode, colour)).pixels
    pixels_BCRR = normalize_pixels(torch.from_numpy(pixels)[None], HALF, HALF, torch.float32)
    assert pixels_BCRR.shape == (1, 3, RESOLUTION, RESOLUTION)
    assert (pixels_BCRR.amax((0, 2, 3)) == pixels_BCRR.amin((0, 2, 3))).all()
    return pixels_BCRR[0, :, 0, 0]


# Pixels


def test_black_is_minus_one_and_white_is_one() -> None:
    assert channels("L", 0).tolist() == [-1, -1, -1]
    assert channels("L", 255).tolist() == [1, 1, 1]
    grey = channels("L", 127) + channels("L", 128)
    torch.testing.assert_close(grey, torch.zeros(3), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("colour", "expected"),
    [("red", [1, -1, -1]), ("lime", [-1, 1, -1]), ("blue", [-1, -1, 1]), ("yellow", [1, 1, -1])],
)
def test_channels_come_first_in_rgb_order(colour: str, expected: list[int]) -> None:
    assert channels("RGB", colour).tolist() == expected


def test_rows_of_pixels_stay_rows() -> None:
    pixels = np.zeros((4, 4, 3), np.uint8)
    pixels[1, 3, 2] = 255
    found = normalize_pixels(torch.from_numpy(pixels)[None], HALF, HALF, torch.float32)
    assert (found > 0).nonzero().tolist() == [[0, 2, 1, 3]]


def test_images_of_any_size_and_mode_are_stacked_in_order(
    engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    encode = engine.model.encode
    monkeypatch.setattr(engine.model, "encode", lambda x: seen.append(x) or encode(x))
    colours = [("RGB", "red", (9, 50)), ("L", 255, (80, 8)), ("1", 0, (3, 3)), ("P", 0, (64, 64))]
    files = [stored(*colour) for colour in colours]
    stream = [(n, decoded_image(data, n, ("caption en",))) for n, data in enumerate(files)]
    assert len(list(engine.ask(stream, Question("ask", None, 1)))) == 4
    (pixels_BCRR,) = seen
    assert pixels_BCRR.shape == (4, 3, RESOLUTION, RESOLUTION)
    expected = [[1, -1, -1], [1, 1, 1], [-1, -1, -1], [-1, -1, -1]]
    assert pixels_BCRR.amax((2, 3)).tolist() == pixels_BCRR.amin((2, 3)).tolist() == expected


# Prompt ids

PROMPTS = [
    *("caption en", "answer en how many red circles?", "detect red circle ; star", "a"),
    *("a\n\nb", "what?!", "two  blanks", "Straße №5", "🟥", "👩‍👩‍👧", "is it 🇨🇭"),
]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_prompt_ids_equal_transformers(vocabulary: Tokenizer, processor: Any, prompt: str) -> None:
    image = Image.new("RGB", (8, 8))
    expected = processor(images=image, text="<image>" + prompt)["input_ids"][0]
    placeholder = vocabulary.id("<image>")
    assert [placeholder] * PATCHES + vocabulary.encode_prompt(prompt) == [
        int(token) for token in expected
    ]


@pytest.fixture(scope="module")
def processor(tiny: Path) -> Any:
    from transformers import PaliGemmaProcessor

    return PaliGemmaProcessor.from_pretrained(tiny)


@pytest.mark.parametrize(
    "prompt",
    [
        "",
        " ",
        "\n",
        "\n\n",
        "a",
        "a ",
        "a\n",
        "a\n\n\n",
        "a.",
        "a \t\n ",
        "🟥",
        "👩‍👩‍👧",
        "a\u3000",
        "▁",
    ],
)
def test_prompt_ends_with_one_newline_token(vocabulary: Tokenizer, prompt: str) -> None:
    ids = vocabulary.encode_prompt(prompt)
    assert ids[-1] == NEWLINE
    assert ids == [BOS, *vocabulary.encode_text(prompt.strip()), NEWLINE]
    assert ids.count(BOS) == 1
    assert EOS not in ids
    assert len(ids) == 2 or ids[-2] not in range(NEWLINE, NEWLINE + 31)


def test_final_newline_is_not_merged_with_the_text(tiny: Path) -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(tiny / "tokenizer.json"))
    tokenizer.add_tokens([AddedToken("!\n", normalized=False, special=False)])
    vocabulary = Tokenizer(tokenizer)
    assert vocabulary.encode_answer("yes!\n")[-1] == tokenizer.token_to_id("!\n")
    assert vocabulary.encode_prompt("yes!") == [BOS, *vocabulary.encode_text("yes!"), NEWLINE]


def test_an_empty_prompt_is_bos_and_the_newline(vocabulary: Tokenizer) -> None:
    assert vocabulary.encode_prompt("") == vocabulary.encode_prompt(" \n\t ") == [BOS, NEWLINE]


def test_location_and_mask_tokens_have_consecutive_ids(
    vocabulary: Tokenizer,
) -> None:
    assert (len(vocabulary.locations), len(vocabulary.mask_codes)) == (1024, 128)
    assert vocabulary.mask_codes.start == vocabulary.locations.stop
    assert vocabulary.mask_codes.stop <= vocabulary.size
    texts = [f"<loc{n:04d}>" for n in range(1024)] + [f"<seg{n:03d}>" for n in range(128)]
    assert vocabulary.encode_answer("".join(texts)) == [
        *vocabulary.locations,
        *vocabulary.mask_codes,
    ]
    pieces = vocabulary.decode([*vocabulary.locations, *vocabulary.mask_codes], [1.0] * 1152)
    assert [piece.text for piece in pieces] == texts


# Typed special tokens

TYPED = [
    *("<image>", "<bos>", "<eos>", "<pad>", "<unk>", "<mask>", "<start_of_turn>", "<unused7>"),
    *("<loc0000>", "<loc1023>", "<seg000>", "<seg127>", "[@BOS@]", "<|user|>"),
]


@pytest.fixture(scope="module", params=["as built", "everything special"])
def strict(request: pytest.FixtureRequest, tiny: Path) -> tuple[Tokenizer, tokenizers.Tokenizer]:
    """A tokenizer with plain and special added tokens, and one in which all are special."""
    tokenizer = tokenizers.Tokenizer.from_file(str(tiny / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken("<|user|>", normalized=False)])
    tokenizer.add_tokens([AddedToken("<table>", normalized=False, special=False)])
    if request.param == "everything special":
        names = [f"<loc{n:04d}>" for n in range(1024)] + [f"<seg{n:03d}>" for n in range(128)]
        tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in names])
    return Tokenizer(tokenizer), tokenizer


@pytest.mark.parametrize("typed", TYPED)
@pytest.mark.parametrize("around", ["{}", "is {} a word?", "{}{}", "<{}>", "a{}\n\nb", "🟥{} "])
def test_typed_control_tokens_stay_text(
    strict: tuple[Tokenizer, tokenizers.Tokenizer], typed: str, around: str
) -> None:
    vocabulary, tokenizer = strict
    text = around.replace("{}", typed)
    ids = vocabulary.encode_text(text)
    assert tokenizer.token_to_id(typed) is not None
    assert tokenizer.token_to_id(typed) not in ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert ids != vocabulary.encode_answer(text), "the tokenizer reads no control token here"


def test_typed_location_and_mask_tokens_stay_text(
    strict: tuple[Tokenizer, tokenizers.Tokenizer],
) -> None:
    vocabulary, tokenizer = strict
    every = [f"<loc{n:04d}>" for n in range(1024)] + [f"<seg{n:03d}>" for n in range(128)]
    ids = vocabulary.encode_text("".join(every))
    assert not {*vocabulary.locations, *vocabulary.mask_codes} & set(ids)
    assert tokenizer.decode(ids, skip_special_tokens=False) == "".join(every)


@pytest.mark.parametrize("length", [1, 2, 3, 31])
def test_plain_added_tokens_are_matched(
    strict: tuple[Tokenizer, tokenizers.Tokenizer], length: int
) -> None:
    vocabulary, tokenizer = strict
    run, newlines = NEWLINE + length - 1, "\n" * length
    assert tokenizer.id_to_token(run) == newlines
    text = f"a{newlines}<eos>{newlines}b <table>"
    ids = vocabulary.encode_text(text)
    assert ids.count(run) == 2
    assert ids[-1] == tokenizer.token_to_id("<table>")
    assert EOS not in ids


@pytest.mark.parametrize("text", ["<loc", "<loc12>", "<loc99999>", "<>", "< image>", "<Image>"])
def test_text_resembling_a_control_token_is_unchanged(vocabulary: Tokenizer, text: str) -> None:
    assert vocabulary.encode_text(text) == vocabulary.encode_answer(text)


# Image and text concatenated


@torch.inference_mode()
def test_image_comes_first_and_only_text_is_scaled(
    engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, seen = engine.model, []
    decode = model.decoder.forward

    def watched(x_BSD: Tensor, position_BS: Tensor, *rest: Any, **how: Any) -> Tensor:
        seen.append((x_BSD, position_BS))
        return decode(x_BSD, position_BS, *rest, **how)

    monkeypatch.setattr(model.decoder, "forward", watched)
    patch_BPD = torch.randn(3, PATCHES, model.config.decoder.width)
    token_BT, is_real_BT = left_pad([[2, 108], [2, 300, 301, 108], [2, 302, 108]])
    model.prefill(patch_BPD, token_BT, is_real_BT, model.kv_cache(3))
    ((x_BSD, position_BS),) = seen
    assert torch.equal(x_BSD[:, :PATCHES], patch_BPD)
    embedding = model.decoder.embed_tokens.weight
    scaled = embedding[token_BT] * torch.tensor(model.config.decoder.width).sqrt()
    assert is_real_BT is not None
    torch.testing.assert_close(x_BSD[:, PATCHES:][is_real_BT], scaled[is_real_BT])
    first = PATCHES + 1
    assert position_BS[:, :PATCHES].tolist() == [list(range(1, first))] * 3
    assert position_BS[:, PATCHES:][is_real_BT].tolist() == [
        *(first, first + 1),
        *(first, first + 1, first + 2, first + 3),
        *(first, first + 1, first + 2),
    ]


@torch.inference_mode()
def test_image_placeholder_embedding_is_not_used(tiny: Path) -> None:
    """With a tied head, its row changes the logit of the placeholder only."""
    model = load(Checkpoint("tiny", tiny), device="cpu", dtype="float32").model
    patch_BPD = torch.randn(1, PATCHES, model.config.decoder.width)
    token_BT, image = torch.tensor([[2, 300, 108]]), model.config.image_token_id

    def logits() -> Tensor:
        return model.prefill(patch_BPD, token_BT, None, model.kv_cache(1))[0]

    before = logits()
    model.decoder.embed_tokens.weight[image] = 100 * torch.randn(model.config.decoder.width)
    changed = logits() != before
    assert changed.nonzero().flatten().tolist() == [image]
