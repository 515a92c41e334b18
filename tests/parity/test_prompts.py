"""Prompts as ids: those of transformers, and control tokens that a user types stay text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tokenizers
from PIL import Image
from tokenizers import AddedToken

from pgcli.engine.tokenizer import Tokenizer
from tests.support.tiny import PATCHES

BOS, EOS, NEWLINE = 2, 1, 108


@pytest.fixture(scope="module")
def vocabulary(tiny: Path) -> Tokenizer:
    return Tokenizer.from_folder(tiny)


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
